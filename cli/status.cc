#include "cli/status.h"

#include <fmt/format.h>

#include <memory>
#include <string>

#include "cli/job_client.h"

namespace pliant::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  pliant status                       the only job of this machine
  pliant status --job train           one of several, by name or by its launcher's pid
  pliant status --json | jq .epoch    for programs (docs/CONTROL_API.md)
  PLIANT_TOKEN=... pliant status --endpoint 10.0.0.1:4711
                                      a job that was started elsewhere

The exit code is 0, or 1 if there is no such job or it does not answer.)";

struct StatusArguments {
  JobChoice choice;
  bool json = false;
};

int show_status(const StatusArguments& arguments) {
  const auto job = choose(arguments.choice);
  if (!job.ok()) return report(job.error());
  const auto body = ask(*job, "GET", "/v1/status");
  if (!body.ok()) return report(body.error());
  const auto status = parse_report(*body);
  if (!status.ok()) return report(status.error());
  std::string text = *body;
  if (!arguments.json) {
    text = fmt::format("job {}: {}\n", printable(status->job), summary(*status));
    for (const std::string& line : member_lines(*status, wall_clock_ms())) text += line + "\n";
  }
  const Status printed = print(text);
  return printed.ok() ? 0 : kFailed;
}

}  // namespace

void add_status(CLI::App& app, int& exit_code) {
  CLI::App* const command = app.add_subcommand("status", "Tell what a running job is doing");
  const auto arguments = std::make_shared<StatusArguments>();
  command->footer(kExamples);
  add_job_options(*command, arguments->choice);
  command->add_flag("--json", arguments->json, "One JSON object, for programs");
  command->callback([arguments, &exit_code] { exit_code = show_status(*arguments); });
}

}  // namespace pliant::cli
