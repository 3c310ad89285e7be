#include "cli/events.h"

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>

#include "cli/event_feed.h"
#include "cli/job_client.h"

namespace pliant::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  pliant events                       what happened, then what happens, until the job ends
  pliant events --no-follow           what happened
  pliant events --since 17 --json     one JSON object a line, after number 17

When the coordinator is away for a moment, the stream goes on where it broke.
The exit code is 0 when the job has ended, 1 if it cannot be reached (any more).)";

struct EventsArguments {
  JobChoice choice;
  bool follow = true;
  bool json = false;
  uint64_t since = 0;
};

Status show(const std::vector<Event>& events, const EventsArguments& arguments) {
  std::string text;
  for (const Event& event : events)
    text += (arguments.json ? event_json(event) : event_line(event)) + "\n";
  return print(text);
}

int follow(const EventsArguments& arguments) {
  EventFeed feed([&] { return choose(arguments.choice); }, arguments.since);
  while (!feed.ended()) {
    const auto events = feed.next(std::chrono::hours(1));
    if (!events.ok()) return report(events.error());
    if (!show(*events, arguments).ok()) return kFailed;
  }
  return 0;
}

int list(const EventsArguments& arguments) {
  const auto job = choose(arguments.choice);
  if (!job.ok()) return report(job.error());
  const auto body = ask(*job, "GET", fmt::format("/v1/events?follow=0&since={}", arguments.since));
  if (!body.ok()) return report(body.error());
  const auto events = parse_events(*body);
  if (!events.ok()) return report(events.error());
  return show(*events, arguments).ok() ? 0 : kFailed;
}

}  // namespace

void add_events(CLI::App& app, int& exit_code) {
  CLI::App* const command =
      app.add_subcommand("events", "Tell what happened in a running job, and what happens");
  const auto arguments = std::make_shared<EventsArguments>();
  command->footer(kExamples);
  add_job_options(*command, arguments->choice);
  command->add_flag("--follow,!--no-follow", arguments->follow,
                    "Go on until the job ends (the default), or not");
  command->add_option("--since", arguments->since, "Only events after this number");
  command->add_flag("--json", arguments->json, "One JSON object a line, for programs");
  command->callback([arguments, &exit_code] {
    exit_code = arguments->follow ? follow(*arguments) : list(*arguments);
  });
}

}  // namespace pliant::cli
