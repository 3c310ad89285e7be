#include "cli/drain.h"

#include <fmt/format.h>

#include <memory>
#include <string>

#include "cli/job_client.h"

namespace pliant::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  pliant drain a                      all workers of host a; no new ones are started there
  pliant drain '0.2#1'                one worker, as `pliant status` names it (quoted: # is special)
  pliant drain a --job train          of one of several jobs, by name or by its launcher's pid

Workers leave after the step in hand and end with 0.
The exit code is 0 if the job has taken the wish, 1 if it refuses: it says why.)";

struct DrainArguments {
  JobChoice choice;
  std::string what;
};

int drain(const DrainArguments& arguments) {
  const auto job = choose(arguments.choice);
  if (!job.ok()) return report(job.error());
  DrainWish wish;
  if (const auto peer = parse_peer_id(arguments.what); peer.ok()) {
    wish.peer = *peer;
  } else {
    wish.host = arguments.what;
  }
  const auto body = ask(*job, "POST", "/v1/drain", wish_json(wish));
  if (!body.ok()) return report(body.error());
  const char* const kind = wish.host.empty() ? "peer" : "host";
  return print(fmt::format("{} {} is leaving\n", kind, printable(arguments.what))).ok() ? 0
                                                                                        : kFailed;
}

}  // namespace

void add_drain(CLI::App& app, int& exit_code) {
  CLI::App* const command =
      app.add_subcommand("drain", "Let the workers of a host, or one worker, leave in order");
  const auto arguments = std::make_shared<DrainArguments>();
  command->footer(kExamples);
  command->add_option("HOST|PEER", arguments->what, "Name of a host, or a peer as 0.2#1")
      ->required();
  add_job_options(*command, arguments->choice);
  command->callback([arguments, &exit_code] { exit_code = drain(*arguments); });
}

}  // namespace pliant::cli
