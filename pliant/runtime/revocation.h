// How the clouds say that a machine will be taken away: what their metadata services are asked, and
// what the answers mean. Pure; any thread.
//
// AWS: /latest/meta-data/spot/instance-action, behind a token (IMDSv2). A rebalance recommendation
// is no revocation and is not asked for. GCP: instance/preempted, and a maintenance-event that ends
// the machine. Azure: scheduled events of type Preempt or Terminate that name this machine; they
// also tell of other machines of the same group, so its name is asked for first, and while that is
// not known any Preempt counts.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "pliant/base/result.h"
#include "pliant/base/time.h"
#include "pliant/runtime/http_fetch.h"
#include "pliant/runtime/http_response.h"

namespace pliant {

enum class CloudProvider : uint8_t { kNone, kAws, kGcp, kAzure };

// "off", "aws", "gcp" or "azure".
Result<CloudProvider> parse_cloud_provider(const std::string& text);
const char* to_string(CloudProvider provider);

// Where all three serve their metadata.
inline constexpr const char* kMetadataUrl = "http://169.254.169.254";
inline constexpr Duration kRevocationPoll = std::chrono::seconds(5);

// What one answer means.
struct RevocationAnswer {
  enum class Kind {
    kNothing,   // the machine stays, as far as this answer tells
    kRevoked,   // it will be taken away
    kPuzzling,  // no answer of the service that was expected
  };
  Kind kind = Kind::kNothing;
  std::string text;  // of a revocation: "AWS will terminate it at TIME"; or what is puzzling
  bool operator==(const RevocationAnswer&) const = default;
};

RevocationAnswer interpret_aws_action(const HttpResponse& response);
RevocationAnswer interpret_gcp_preempted(const HttpResponse& response);
RevocationAnswer interpret_gcp_maintenance(const HttpResponse& response);
// `machine`: the name of this one; empty: not known.
RevocationAnswer interpret_azure_events(const HttpResponse& response, const std::string& machine);

// The questions of one provider, one after the other, again and again.
class RevocationInquiry final {
 public:
  explicit RevocationInquiry(CloudProvider provider) : provider_(provider) {}

  HttpAsk question() const;
  // Azure prepares its service on the first question, which may take two minutes.
  Duration patience() const;

  struct Verdict {
    RevocationAnswer answer;
    bool ask_on = false;  // the round is not over: the next question follows at once
  };
  // The response to question(); the next one may be another.
  Verdict hear(const HttpResponse& response);
  // No response came. The next round begins with the first question.
  void start_over();

 private:
  Verdict hear_aws(const HttpResponse& response);
  Verdict hear_gcp(const HttpResponse& response);
  Verdict hear_azure(const HttpResponse& response);

  const CloudProvider provider_;
  std::string token_;        // of AWS; empty: none yet
  bool second_ = false;      // GCP: the second question of a round
  bool asked_name_ = false;  // Azure
  std::string machine_;      // Azure: the name of this one
};

}  // namespace pliant
