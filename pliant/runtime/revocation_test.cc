#include "pliant/runtime/revocation.h"

#include <gtest/gtest.h>

namespace pliant {
namespace {

using Kind = RevocationAnswer::Kind;

HttpResponse response(int status, std::string body = "") {
  return {.status = status, .fields = {}, .body = std::move(body)};
}

TEST(Revocation, ProvidersAreReadBackAsWritten) {
  for (const char* const name : {"off", "aws", "gcp", "azure"})
    EXPECT_STREQ(to_string(parse_cloud_provider(name).value()), name);
  EXPECT_EQ(parse_cloud_provider("ibm").error().message,
            "'ibm' is no cloud: choose off, aws, gcp or azure");
}

TEST(Revocation, AwsAction) {
  EXPECT_EQ(interpret_aws_action(response(404, "<html>")).kind, Kind::kNothing);
  const auto answer = interpret_aws_action(
      response(200, R"({"action": "terminate", "time": "2017-09-18T08:22:00Z"})"));
  EXPECT_EQ(answer.kind, Kind::kRevoked);
  EXPECT_EQ(answer.text, "AWS will terminate it at 2017-09-18T08:22:00Z");
  EXPECT_EQ(interpret_aws_action(response(200, R"({"action": "hibernate"})")).text,
            "AWS will hibernate it");
  for (const char* const body : {"", "[]", "{}", R"({"action": 5})", R"({"action")", "terminate"})
    EXPECT_EQ(interpret_aws_action(response(200, body)).kind, Kind::kPuzzling) << body;
  EXPECT_EQ(interpret_aws_action(response(500)).text, "it answers with status 500");
}

TEST(Revocation, TextsOfStrangersAreTamed) {
  const auto answer =
      interpret_aws_action(response(200, R"({"action": "a\nb\u001b[31m", "time": "\u00e9"})"));
  EXPECT_EQ(answer.text, "AWS will a?b?[31m it at ??");
  const auto lengthy =
      interpret_aws_action(response(200, R"({"action": ")" + std::string(5000, 'x') + "\"}"));
  EXPECT_LT(lengthy.text.size(), 200u);
}

TEST(Revocation, GcpPreempted) {
  EXPECT_EQ(interpret_gcp_preempted(response(200, "FALSE\n")).kind, Kind::kNothing);
  EXPECT_EQ(interpret_gcp_preempted(response(200, "TRUE")).text, "GCP preempts it");
  EXPECT_EQ(interpret_gcp_preempted(response(200, "maybe")).kind, Kind::kPuzzling);
  EXPECT_EQ(interpret_gcp_preempted(response(404)).kind, Kind::kPuzzling);
}

TEST(Revocation, GcpMaintenance) {
  EXPECT_EQ(interpret_gcp_maintenance(response(200, "NONE")).kind, Kind::kNothing);
  EXPECT_EQ(interpret_gcp_maintenance(response(404)).kind, Kind::kNothing);
  EXPECT_EQ(interpret_gcp_maintenance(response(200, "MIGRATE_ON_HOST_MAINTENANCE")).kind,
            Kind::kNothing);
  EXPECT_EQ(interpret_gcp_maintenance(response(200, "TERMINATE_ON_HOST_MAINTENANCE")).kind,
            Kind::kRevoked);
  EXPECT_EQ(interpret_gcp_maintenance(response(403)).kind, Kind::kPuzzling);
}

std::string azure(const std::string& type, const std::string& resource) {
  return R"({"DocumentIncarnation": 2, "Events": [{"EventId": "1", "EventType": "Freeze",
             "Resources": ["vm_0"]}, 7, {"EventId": "2", "EventStatus": "Scheduled",
             "EventType": ")" +
         type + R"(", "ResourceType": "VirtualMachine", "Resources": ["vm_9", ")" + resource +
         R"("], "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT"}]})";
}

TEST(Revocation, AzureEventsOfThisMachine) {
  const auto kind = [](const std::string& body, const std::string& machine) {
    return interpret_azure_events(response(200, body), machine).kind;
  };
  EXPECT_EQ(interpret_azure_events(response(200, azure("Preempt", "vm_0")), "vm_0").text,
            "Azure will preempt it at Mon, 19 Sep 2016 18:29:47 GMT");
  EXPECT_EQ(kind(azure("Terminate", "vm_0"), "vm_0"), Kind::kRevoked);
  EXPECT_EQ(kind(azure("Preempt", "vm_1"), "vm_0"), Kind::kNothing);
  for (const char* const type : {"Freeze", "Reboot", "Redeploy"})
    EXPECT_EQ(kind(azure(type, "vm_0"), "vm_0"), Kind::kNothing) << type;
  // Without a name any Preempt counts, and it alone.
  EXPECT_EQ(kind(azure("Preempt", "vm_1"), ""), Kind::kRevoked);
  EXPECT_EQ(kind(azure("Terminate", "vm_1"), ""), Kind::kNothing);
  EXPECT_EQ(kind(R"({"Events": []})", ""), Kind::kNothing);
  for (const char* const body : {"", "[]", "{}", R"({"Events": {}})"})
    EXPECT_EQ(kind(body, ""), Kind::kPuzzling) << body;
}

TEST(Revocation, AwsIsAskedWithAToken) {
  RevocationInquiry inquiry(CloudProvider::kAws);
  const HttpAsk first = inquiry.question();
  EXPECT_EQ(first.method + " " + first.target, "PUT /latest/api/token");
  EXPECT_EQ(first.fields.at("X-aws-ec2-metadata-token-ttl-seconds"), "21600");
  EXPECT_TRUE(inquiry.hear(response(200, "secret==\n")).ask_on);
  const HttpAsk second = inquiry.question();
  EXPECT_EQ(second.target, "/latest/meta-data/spot/instance-action");
  EXPECT_EQ(second.fields.at("X-aws-ec2-metadata-token"), "secret==");
  EXPECT_FALSE(inquiry.hear(response(404)).ask_on);
  EXPECT_EQ(inquiry.question(), second);  // the token serves again
  EXPECT_EQ(inquiry.hear(response(401)).answer.kind, Kind::kNothing);
  EXPECT_EQ(inquiry.question(), first);
  EXPECT_EQ(inquiry.hear(response(200, "two words")).answer.kind, Kind::kPuzzling);
  EXPECT_EQ(inquiry.hear(response(403)).answer.kind, Kind::kPuzzling);
  EXPECT_EQ(inquiry.question(), first);
}

TEST(Revocation, GcpIsAskedTwoQuestions) {
  RevocationInquiry inquiry(CloudProvider::kGcp);
  const HttpAsk first = inquiry.question();
  EXPECT_EQ(first.target, "/computeMetadata/v1/instance/preempted");
  EXPECT_EQ(first.fields.at("Metadata-Flavor"), "Google");
  EXPECT_TRUE(inquiry.hear(response(200, "FALSE")).ask_on);
  EXPECT_EQ(inquiry.question().target, "/computeMetadata/v1/instance/maintenance-event");
  EXPECT_FALSE(inquiry.hear(response(200, "NONE")).ask_on);
  EXPECT_EQ(inquiry.question(), first);
  inquiry.hear(response(200, "FALSE"));
  inquiry.start_over();
  EXPECT_EQ(inquiry.question(), first);
  EXPECT_EQ(inquiry.hear(response(200, "TRUE")).answer.kind, Kind::kRevoked);
}

TEST(Revocation, AzureIsAskedForTheNameFirst) {
  RevocationInquiry inquiry(CloudProvider::kAzure);
  EXPECT_EQ(inquiry.question().fields.at("Metadata"), "true");
  EXPECT_TRUE(inquiry.question().target.starts_with("/metadata/instance/compute/name?"));
  EXPECT_TRUE(inquiry.hear(response(200, "vm_0")).ask_on);
  EXPECT_EQ(inquiry.question().target, "/metadata/scheduledevents?api-version=2020-07-01");
  EXPECT_EQ(inquiry.hear(response(200, azure("Preempt", "vm_1"))).answer.kind, Kind::kNothing);
  EXPECT_EQ(inquiry.hear(response(200, azure("Preempt", "vm_0"))).answer.kind, Kind::kRevoked);

  RevocationInquiry nameless(CloudProvider::kAzure);
  EXPECT_TRUE(nameless.hear(response(404)).ask_on);
  EXPECT_EQ(nameless.hear(response(200, azure("Preempt", "vm_1"))).answer.kind, Kind::kRevoked);
}

TEST(HttpBase, IsReadFromAUrl) {
  const auto plain = parse_http_base("http://169.254.169.254");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(to_string(plain->address), "169.254.169.254:80");
  EXPECT_EQ(plain->prefix, "");
  const auto whole = parse_http_base("http://localhost:8080/a/b/");
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(to_string(whole->address), "127.0.0.1:8080");
  EXPECT_EQ(whole->host, "localhost:8080");
  EXPECT_EQ(whole->prefix, "/a/b");
  EXPECT_EQ(to_string(parse_http_base("http://[::1]/x")->address), "[::1]:80");
  for (const char* const url :
       {"", "127.0.0.1", "https://127.0.0.1", "http://", "http:///x", "http://metadata.google",
        "http://127.0.0.1:x", "http://127.0.0.1:99999", "http://127.0.0.1/a b",
        "http://127.0.0.1/?q", "http://me@127.0.0.1", "http://127.0.0.1/\r\nX: y"})
    EXPECT_FALSE(parse_http_base(url).ok()) << url;
}

}  // namespace
}  // namespace pliant
