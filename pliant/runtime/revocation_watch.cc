#include "pliant/runtime/revocation_watch.h"

#include <fmt/format.h>

#include <utility>

#include "pliant/base/log.h"

namespace pliant {
namespace {

// A service that does not answer is asked so many times less often.
constexpr int kSlower = 12;

}  // namespace

RevocationWatch::RevocationWatch(Loop& loop, Options options, OnRevoked on_revoked)
    : loop_(loop),
      options_(std::move(options)),
      on_revoked_(std::move(on_revoked)),
      inquiry_(options_.provider) {
  if (options_.provider != CloudProvider::kNone) ask();
}

RevocationWatch::~RevocationWatch() {
  loop_.assert_held();
  if (timer_) loop_.cancel(*timer_);
}

void RevocationWatch::ask() {
  fetch_ = std::make_unique<HttpFetch>(
      loop_, options_.base, inquiry_.question(), now() + inquiry_.patience(),
      [this](const Result<HttpResponse>& response) { on_response(response); });
}

void RevocationWatch::ask_later(Duration wait) {
  timer_ = loop_.at(now() + wait, [this] {
    timer_.reset();
    ask();
  });
}

void RevocationWatch::on_response(const Result<HttpResponse>& response) {
  if (!response) {
    inquiry_.start_over();
    return on_trouble(response.error().message);
  }
  const RevocationInquiry::Verdict verdict = inquiry_.hear(*response);
  switch (verdict.answer.kind) {
    case RevocationAnswer::Kind::kRevoked: {
      // Whoever is called may destroy this.
      const OnRevoked on_revoked = on_revoked_;
      return on_revoked(verdict.answer.text);
    }
    case RevocationAnswer::Kind::kPuzzling: return on_trouble(verdict.answer.text);
    case RevocationAnswer::Kind::kNothing: break;
  }
  if (verdict.ask_on) return ask_later(Duration(0));
  told_ = false;
  ask_later(options_.every);
}

void RevocationWatch::on_trouble(const std::string& why) {
  if (!std::exchange(told_, true))
    log(LogLevel::kInfo,
        fmt::format("the metadata service at http://{}{} does not say whether this machine will be "
                    "taken away ({}); it is asked again every {}",
                    options_.base.host, options_.base.prefix, why,
                    human_duration(kSlower * options_.every)));
  ask_later(kSlower * options_.every);
}

}  // namespace pliant
