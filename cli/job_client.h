// What the commands that talk to a running job share: choosing the job, asking it, and how its
// state and its events are shown.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/http_client.h"
#include "pliant/base/result.h"
#include "pliant/base/time.h"
#include "pliant/runtime/event_log.h"
#include "pliant/runtime/job_files.h"
#include "pliant/runtime/job_report.h"

namespace pliant::cli {

inline constexpr int kFailed = 1;
inline constexpr int kUsageError = 2;
inline constexpr Duration kCallDeadline = std::chrono::seconds(10);

// Which job: by name or launcher's pid among those of this machine, or by its endpoint.
struct JobChoice {
  std::string job;
  std::string endpoint;
};
void add_job_options(CLI::App& command, JobChoice& choice);

// The folder of job files, from XDG_RUNTIME_DIR and HOME.
Result<std::string> job_folder_here();
Result<JobEntry> choose(const JobChoice& choice);

// "cannot reach job train (pid 4711) at 127.0.0.1:80: Connection refused"
Error unreachable(const JobEntry& job, const Error& error);
// The job's own words for an answer that is no success.
Error refusal_in(const HttpReply& reply);

// The body of a successful answer.
Result<std::string> ask(const JobEntry& job, const std::string& method, const std::string& target,
                        const std::string& body = "");
Result<JobReport> ask_report(const JobEntry& job);

// "pliant: MESSAGE" on standard error; returns kFailed.
int report(const Error& error);
// "pliant COMMAND: MESSAGE" on standard error; returns kUsageError.
int usage(std::string_view command, const std::string& message);
// All of it on standard output, at once; an error if nobody reads it.
Status print(const std::string& text);

// Without control characters, which a terminal would obey.
std::string printable(std::string text);
// "12 s", "3 m 05 s", "2 h 05 m", "4 d 02 h"
std::string human_span(int64_t ms);
// "running, epoch 3, 4 of 4 members (1 to 8), step 120, 7680 samples"
std::string summary(const JobReport& status);
// A table with one line for each member and one above.
std::vector<std::string> member_lines(const JobReport& status, int64_t now_ms);
// "12:03:04.123  loss      who and why", in local time
std::string event_line(const Event& event);
int64_t wall_clock_ms();

}  // namespace pliant::cli
