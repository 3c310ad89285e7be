#include "cli/job_client.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string_view>

namespace pliant::cli {
namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Status write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error("cannot write");
    text.remove_prefix(static_cast<size_t>(count));
  }
  return {};
}

}  // namespace

void add_job_options(CLI::App& command, JobChoice& choice) {
  auto* const job = command.add_option(
      "--job", choice.job, "Name of the job or pid of its launcher (default: the only one)");
  command
      .add_option("--endpoint", choice.endpoint,
                  "ADDRESS:PORT of a job elsewhere; its token is read from PLIANT_TOKEN")
      ->excludes(job);
}

Result<std::string> job_folder_here() {
  return job_folder(variable("XDG_RUNTIME_DIR"), variable("HOME"));
}

Result<JobEntry> choose(const JobChoice& choice) {
  if (!choice.endpoint.empty()) {
    JobEntry entry{.job = "", .endpoint = choice.endpoint, .token = variable("PLIANT_TOKEN")};
    if (entry.token.empty()) return invalid("--endpoint needs the job's token in PLIANT_TOKEN");
    const auto control = [](unsigned char c) { return c <= ' ' || c == 0x7f; };
    if (std::ranges::any_of(entry.token, control))
      return invalid("PLIANT_TOKEN holds characters that no token has");
    return entry;
  }
  const auto folder = job_folder_here();
  if (!folder.ok()) return folder.error();
  return JobFile::find(*folder, choice.job);
}

Error unreachable(const JobEntry& job, const Error& error) {
  const std::string name = job.pid == 0 ? "" : fmt::format(" {} (pid {})", job.job, job.pid);
  return {error.code,
          fmt::format("cannot reach job{} at {}: {}", name, job.endpoint, error.message),
          {},
          {}};
}

Error refusal_in(const HttpReply& reply) {
  const auto object = nlohmann::json::parse(reply.body, nullptr, false);
  if (object.is_object() && object.contains("error") && object["error"].is_string())
    return invalid(object["error"].get<std::string>());
  return invalid(fmt::format("the job answered with HTTP status {}", reply.status));
}

Result<std::string> ask(const JobEntry& job, const std::string& method, const std::string& target,
                        const std::string& body) {
  const auto reply = http_call({.endpoint = job.endpoint,
                                .token = job.token,
                                .method = method,
                                .target = target,
                                .body = body},
                               kCallDeadline);
  if (!reply.ok()) return unreachable(job, reply.error());
  if (reply->status < 200 || reply->status > 299) return refusal_in(*reply);
  return reply->body;
}

Result<JobReport> ask_report(const JobEntry& job) {
  const auto body = ask(job, "GET", "/v1/status");
  if (!body.ok()) return body.error();
  return parse_report(*body);
}

int report(const Error& error) {
  // Without standard error there is nobody to tell.
  const Status told = write_all(STDERR_FILENO, "pliant: " + printable(error.message) + "\n");
  static_cast<void>(told);
  return kFailed;
}

int usage(std::string_view command, const std::string& message) {
  const Status told =
      write_all(STDERR_FILENO, fmt::format("pliant {}: {}\n", command, printable(message)));
  static_cast<void>(told);
  return kUsageError;
}

Status print(const std::string& text) { return write_all(STDOUT_FILENO, text); }

std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return (c >= 0 && c < ' ') || c == '\x7f'; }, '?');
  return text;
}

std::string human_span(int64_t ms) {
  const int64_t s = std::max<int64_t>(ms, 0) / 1000;
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} m {:02} s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{} h {:02} m", s / 3600, s / 60 % 60);
  return fmt::format("{} d {:02} h", s / 86400, s / 3600 % 24);
}

std::string summary(const JobReport& status) {
  std::string text = to_string(status.state);
  if (!status.paused_reason.empty()) text += " (" + printable(status.paused_reason) + ")";
  return text + fmt::format(", epoch {}, {} of {} members ({} to {}), step {}, {} samples",
                            status.epoch, status.members.size(), status.target, status.min,
                            status.max, status.step, status.samples);
}

std::vector<std::string> member_lines(const JobReport& status, int64_t now_ms) {
  size_t host_width = 4;
  for (const MemberReport& member : status.members)
    host_width = std::max(host_width, std::min<size_t>(member.host.size(), 40));
  std::vector<std::string> lines = {fmt::format("{:>5}  {:<12}  {:<{}}  {:>8}  {}", "RANK", "PEER",
                                                "HOST", host_width, "PID", "MEMBER FOR")};
  for (const MemberReport& member : status.members) {
    lines.push_back(fmt::format("{:>5}  {:<12}  {:<{}}  {:>8}  {}", member.rank,
                                to_string(member.peer), printable(member.host), host_width,
                                member.pid, human_span(now_ms - member.since_ms)));
  }
  return lines;
}

std::string event_line(const Event& event) {
  std::string when = std::string(12, ' ');
  if (event.time_ms > 0) {
    const time_t second = static_cast<time_t>(event.time_ms / 1000);
    tm local{};
    localtime_r(&second, &local);
    when = fmt::format("{:02}:{:02}:{:02}.{:03}", local.tm_hour, local.tm_min, local.tm_sec,
                       event.time_ms % 1000);
  }
  return fmt::format("{}  {:<8}  {}", when, printable(event.kind), printable(event.message));
}

int64_t wall_clock_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace pliant::cli
