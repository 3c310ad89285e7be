// Sockets: addresses, non-blocking TCP and Unix sockets, descriptors passed between processes.
//
// Every socket made here is non-blocking and closed on exec. The functions keep no state: any
// thread may call them; an Fd is owned by whoever holds it.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pliant/base/bytes.h"
#include "pliant/base/result.h"
#include "pliant/base/time.h"

namespace pliant {

// Owns one file descriptor. Moves, because descriptors are handed over; never copies.
class Fd final {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset();
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// A numeric IPv4 or IPv6 address with a port. A value.
struct Address {
  sockaddr_storage storage{};
  socklen_t size_bytes = 0;

  int family() const { return storage.ss_family; }
  uint16_t port() const;
  // True if both name the same interface; ports are not looked at.
  bool same_host(const Address& other) const;
  bool loopback() const;
};

// "127.0.0.1:4711", "[::1]:4711"
std::string to_string(const Address& address);

// `host` is numeric ("10.0.0.7", "::1", "fe80::1%eth0"); names are never looked up here.
Result<Address> parse_address(const std::string& host, uint16_t port);
// Reads "a.b.c.d:port" or "[v6]:port".
Result<Address> parse_endpoint(const std::string& text);

// TCP connections, those of a listener too, do not delay small messages, have deep buffers, and
// break when nothing was acknowledged for `silence_max`: a host that vanished is noticed. What the
// kernel turns down of this is left at its defaults.
inline constexpr Duration kSilenceMax = std::chrono::seconds(20);

// Binds and listens; port 0 lets the kernel choose. A port in use is kInvalid and says so.
Result<Fd> listen_tcp(const Address& address, Duration silence_max = kSilenceMax);
// Begins to connect: the socket turns writable when that is decided, then connect_status() tells.
Result<Fd> connect_tcp(const Address& address, Duration silence_max = kSilenceMax);
// Success, or why the connection did not come about.
Status connect_status(const Fd& socket);
// The next waiting connection of a TCP or Unix listener; an invalid Fd if none waits.
Result<Fd> accept_from(const Fd& listener);

Result<Address> local_address(const Fd& socket);
Result<Address> remote_address(const Fd& socket);
// Our address on the network that leads to `target`; nothing is sent.
Result<Address> address_towards(const Address& target);

// Unix sockets with an abstract name: no file is left behind. Packets keep message boundaries.
enum class LocalKind { kStream, kPackets };
Result<Fd> listen_local(const std::string& name, LocalKind kind);
Result<Fd> connect_local(const std::string& name, LocalKind kind);

// Who is at the other end of a Unix socket, by the kernel's word.
struct Credentials {
  pid_t pid = 0;
  uid_t uid = 0;
};
Result<Credentials> peer_credentials(const Fd& socket);

inline constexpr size_t kDescriptorsMax = 16;  // in one message

// Sends bytes (at least one) and descriptors together; returns the bytes taken, 0 if it would have
// to wait. The descriptors stay the caller's.
Result<size_t> send_descriptors(const Fd& socket, Bytes bytes, std::span<const int> descriptors);

struct Received {
  enum class State { kData, kNothingYet, kClosed };
  State state = State::kNothingYet;
  size_t size_bytes = 0;
  std::vector<Fd> descriptors;
};
// Receives into `room`. More descriptors than kDescriptorsMax are an error, and none is leaked.
Result<Received> receive_descriptors(const Fd& socket, std::span<std::byte> room);

}  // namespace pliant
