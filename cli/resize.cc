#include "cli/resize.h"

#include <fmt/format.h>

#include <memory>

#include "cli/job_client.h"
#include "pliant/membership/view.h"

namespace pliant::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  pliant resize 8                     the only job of this machine
  pliant resize 2 --job train         one of several, by name or by its launcher's pid

Training goes on while workers start; they join when they are ready. The last wish counts.
The exit code is 0 if the job has taken the wish, 1 if it refuses: it says why.)";

struct ResizeArguments {
  JobChoice choice;
  uint32_t size = 0;
};

int resize(const ResizeArguments& arguments) {
  const auto job = choose(arguments.choice);
  if (!job.ok()) return report(job.error());
  const auto body = ask(*job, "PUT", "/v1/size", wish_json(ResizeWish{arguments.size}));
  if (!body.ok()) return report(body.error());
  return print(fmt::format("the job is to have {} members\n", arguments.size)).ok() ? 0 : kFailed;
}

}  // namespace

void add_resize(CLI::App& app, int& exit_code) {
  CLI::App* const command =
      app.add_subcommand("resize", "Change the number of members of a running job");
  const auto arguments = std::make_shared<ResizeArguments>();
  command->footer(kExamples);
  // Whether the job can have that many, it says itself.
  command->add_option("N", arguments->size, "Number of members")
      ->required()
      ->check(CLI::Range(uint32_t{0}, static_cast<uint32_t>(kMembersMax)));
  add_job_options(*command, arguments->choice);
  command->callback([arguments, &exit_code] { exit_code = resize(*arguments); });
}

}  // namespace pliant::cli
