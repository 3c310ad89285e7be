#include "cli/stop.h"

#include <memory>

#include "cli/job_client.h"

namespace pliant::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  pliant stop                         the only job of this machine
  pliant stop --job train             one of several, by name or by its launcher's pid

The exit code is 0 if the job has taken the wish, 1 if it refuses: it says why.)";

int stop(const JobChoice& choice) {
  const auto job = choose(choice);
  if (!job.ok()) return report(job.error());
  const auto body = ask(*job, "POST", "/v1/stop");
  if (!body.ok()) return report(body.error());
  return print("the job is ending\n").ok() ? 0 : kFailed;
}

}  // namespace

void add_stop(CLI::App& app, int& exit_code) {
  CLI::App* const command = app.add_subcommand("stop", "End a running job");
  const auto choice = std::make_shared<JobChoice>();
  command->footer(kExamples);
  add_job_options(*command, *choice);
  command->callback([choice, &exit_code] { exit_code = stop(*choice); });
}

}  // namespace pliant::cli
