#include "pliant/runtime/steady_link.h"

#include <algorithm>
#include <utility>

namespace pliant {
namespace {

constexpr Duration kRetryAfterMin = std::chrono::milliseconds(5);
constexpr Duration kRetryAfterMax = std::chrono::milliseconds(500);

}  // namespace

SteadyLink::SteadyLink(Loop& loop, Address coordinator, std::string token, Callbacks callbacks)
    : loop_(loop),
      coordinator_(coordinator),
      token_(std::move(token)),
      callbacks_(std::move(callbacks)),
      retry_after_(kRetryAfterMin) {
  dial();
}

SteadyLink::~SteadyLink() {
  loop_.assert_held();
  if (retry_) loop_.cancel(*retry_);
}

void SteadyLink::dial() {
  retry_.reset();
  auto fd = connect_tcp(coordinator_);
  if (!fd) return dial_later(fd.error());
  socket_ = std::make_unique<ControlSocket>(
      loop_, std::move(*fd), ControlSocket::State::kConnecting, kControlBytesMax,
      ControlSocket::Callbacks{[this](const Message& message) {
                                 retry_after_ = kRetryAfterMin;
                                 callbacks_.on_message(message);
                               },
                               [this](const Error& error) { dial_later(error); }});
  socket_->send(Greeting{kControlVersion, token_});
  for (const Message& message : callbacks_.introduction()) socket_->send(message);
}

// The closed socket stays until the next one takes its place; it ignores what is sent.
void SteadyLink::dial_later(const Error& why) {
  why_ = why.message;
  if (retry_) return;
  retry_ = loop_.at(now() + retry_after_, [this] { dial(); });
  retry_after_ = std::min(2 * retry_after_, kRetryAfterMax);
  callbacks_.on_closed(why);
}

void SteadyLink::send(const Message& message) {
  loop_.assert_held();
  if (socket_) socket_->send(message);
}

}  // namespace pliant
