#include "pliant/runtime/revocation.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "pliant/base/text.h"

namespace pliant {
namespace {

using Json = nlohmann::json;
using Kind = RevocationAnswer::Kind;

constexpr Duration kPatience = std::chrono::seconds(5);
constexpr Duration kAzurePatience = std::chrono::seconds(130);
constexpr int kTokenSeconds = 6 * 60 * 60;  // the most that AWS gives
constexpr size_t kTokenBytesMax = 1024;
constexpr size_t kTextBytesMax = 100;

// A stranger's text, fit for a line of ours.
std::string plain(std::string_view text) {
  std::string result(text.substr(0, kTextBytesMax));
  for (char& c : result) {
    if (c < ' ' || c >= '\x7f') c = '?';
  }
  return result;
}

// A text field of an object; empty if there is none.
std::string text_in(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_string() ? plain(at->get<std::string>()) : "";
}

RevocationAnswer nothing() { return {}; }

RevocationAnswer revoked(std::string text) { return {Kind::kRevoked, std::move(text)}; }

RevocationAnswer puzzling(std::string text) { return {Kind::kPuzzling, std::move(text)}; }

RevocationAnswer unexpected(const HttpResponse& response) {
  return puzzling(fmt::format("it answers with status {}", response.status));
}

std::string at_time(const std::string& time) { return time.empty() ? "" : " at " + time; }

bool is_about(const Json& event, const std::string& machine) {
  const auto resources = event.find("Resources");
  if (resources == event.end() || !resources->is_array()) return false;
  return std::any_of(resources->begin(), resources->end(), [&](const Json& name) {
    return name.is_string() && name.get<std::string>() == machine;
  });
}

}  // namespace

Result<CloudProvider> parse_cloud_provider(const std::string& text) {
  for (const auto provider :
       {CloudProvider::kNone, CloudProvider::kAws, CloudProvider::kGcp, CloudProvider::kAzure})
    if (text == to_string(provider)) return provider;
  return invalid(fmt::format("'{}' is no cloud: choose off, aws, gcp or azure", text));
}

const char* to_string(CloudProvider provider) {
  switch (provider) {
    case CloudProvider::kNone: return "off";
    case CloudProvider::kAws: return "aws";
    case CloudProvider::kGcp: return "gcp";
    case CloudProvider::kAzure: return "azure";
  }
  return "off";
}

// {"action": "terminate", "time": "2017-09-18T08:22:00Z"}; stop and hibernate take it away as well.
RevocationAnswer interpret_aws_action(const HttpResponse& response) {
  if (response.status == 404) return nothing();
  if (response.status != 200) return unexpected(response);
  const Json body = Json::parse(response.body, nullptr, false);
  if (!body.is_object()) return puzzling("its answer is no JSON object");
  const std::string action = text_in(body, "action");
  if (action.empty()) return puzzling("its answer names no action");
  return revoked(fmt::format("AWS will {} it{}", action, at_time(text_in(body, "time"))));
}

RevocationAnswer interpret_gcp_preempted(const HttpResponse& response) {
  if (response.status != 200) return unexpected(response);
  const std::string_view text = trimmed(response.body);
  if (text == "FALSE") return nothing();
  if (text == "TRUE") return revoked("GCP preempts it");
  return puzzling(fmt::format("it answers '{}'", plain(text)));
}

RevocationAnswer interpret_gcp_maintenance(const HttpResponse& response) {
  if (response.status == 404) return nothing();
  if (response.status != 200) return unexpected(response);
  // A migration leaves it running.
  if (trimmed(response.body) == "TERMINATE_ON_HOST_MAINTENANCE")
    return revoked("GCP terminates it for maintenance of its host");
  return nothing();
}

RevocationAnswer interpret_azure_events(const HttpResponse& response, const std::string& machine) {
  if (response.status != 200) return unexpected(response);
  const Json body = Json::parse(response.body, nullptr, false);
  if (!body.is_object()) return puzzling("its answer is no JSON object");
  const auto events = body.find("Events");
  if (events == body.end() || !events->is_array()) return puzzling("its answer lists no events");
  for (const Json& event : *events) {
    if (!event.is_object()) continue;
    const std::string type = text_in(event, "EventType");
    if (type != "Preempt" && type != "Terminate") continue;
    const bool ours = machine.empty() ? type == "Preempt" : is_about(event, machine);
    if (!ours) continue;
    // An event that has begun has no time any more.
    return revoked(fmt::format("Azure will {} it{}", type == "Preempt" ? "preempt" : "terminate",
                               at_time(text_in(event, "NotBefore"))));
  }
  return nothing();
}

HttpAsk RevocationInquiry::question() const {
  switch (provider_) {
    case CloudProvider::kNone: break;
    case CloudProvider::kAws:
      if (token_.empty())
        return {"PUT",
                "/latest/api/token",
                {{"X-aws-ec2-metadata-token-ttl-seconds", std::to_string(kTokenSeconds)}}};
      return {
          "GET", "/latest/meta-data/spot/instance-action", {{"X-aws-ec2-metadata-token", token_}}};
    case CloudProvider::kGcp:
      return {"GET",
              second_ ? "/computeMetadata/v1/instance/maintenance-event"
                      : "/computeMetadata/v1/instance/preempted",
              {{"Metadata-Flavor", "Google"}}};
    case CloudProvider::kAzure:
      return {"GET",
              asked_name_ ? "/metadata/scheduledevents?api-version=2020-07-01"
                          : "/metadata/instance/compute/name?api-version=2021-02-01&format=text",
              {{"Metadata", "true"}}};
  }
  return {};
}

Duration RevocationInquiry::patience() const {
  return provider_ == CloudProvider::kAzure ? kAzurePatience : kPatience;
}

RevocationInquiry::Verdict RevocationInquiry::hear(const HttpResponse& response) {
  switch (provider_) {
    case CloudProvider::kNone: break;
    case CloudProvider::kAws: return hear_aws(response);
    case CloudProvider::kGcp: return hear_gcp(response);
    case CloudProvider::kAzure: return hear_azure(response);
  }
  return {};
}

void RevocationInquiry::start_over() { second_ = false; }

RevocationInquiry::Verdict RevocationInquiry::hear_aws(const HttpResponse& response) {
  if (token_.empty()) {
    const std::string_view token = trimmed(response.body);
    const bool fits =
        !token.empty() && token.size() <= kTokenBytesMax &&
        std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < '\x7f'; });
    if (response.status != 200) return {unexpected(response), false};
    if (!fits) return {puzzling("it gives no token"), false};
    token_ = token;
    return {nothing(), true};
  }
  // The token is too old; the next round asks for another.
  if (response.status == 401) {
    token_.clear();
    return {nothing(), false};
  }
  return {interpret_aws_action(response), false};
}

RevocationInquiry::Verdict RevocationInquiry::hear_gcp(const HttpResponse& response) {
  if (std::exchange(second_, false)) return {interpret_gcp_maintenance(response), false};
  const RevocationAnswer answer = interpret_gcp_preempted(response);
  second_ = answer.kind == Kind::kNothing;
  return {answer, second_};
}

RevocationInquiry::Verdict RevocationInquiry::hear_azure(const HttpResponse& response) {
  if (asked_name_) return {interpret_azure_events(response, machine_), false};
  asked_name_ = true;
  if (response.status == 200) machine_ = trimmed(response.body);
  return {nothing(), true};
}

}  // namespace pliant
