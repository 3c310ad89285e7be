#include "pliant/transport/socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace pliant {
namespace {

// Peers of a large job dial at once; the kernel lowers this to its own bound.
constexpr int kBacklog = 4096;
constexpr int kSocketBufferBytes = 1 << 20;

void set_option(const Fd& socket, int level, int option, int value) {
  setsockopt(socket.get(), level, option, &value, sizeof value);
}

// Not const: the socket calls take a plain sockaddr.
sockaddr* raw(Address& address) { return reinterpret_cast<sockaddr*>(&address.storage); }
const sockaddr* raw(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

Bytes host_bytes(const Address& address) {
  if (address.family() == AF_INET)
    return std::as_bytes(
        std::span(&reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr, 1));
  if (address.family() == AF_INET6)
    return std::as_bytes(
        std::span(&reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr, 1));
  return {};
}

Result<Fd> open_socket(int family, int type) {
  Fd fd(::socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return system_error("cannot make a socket");
  return fd;
}

// Before connect() and before the first accept(), because the window is agreed on then.
void tune_tcp(const Fd& socket, Duration silence_max) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_SNDBUF, kSocketBufferBytes);
  set_option(socket, SOL_SOCKET, SO_RCVBUF, kSocketBufferBytes);
  const auto silence_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(silence_max).count();
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(silence_ms));
  // An idle connection is asked after a third of that, so that three questions fit.
  const int probe_s = std::max(1, static_cast<int>(silence_ms / 3000));
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, probe_s);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, probe_s);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

// bbr, the default of many systems, paces: between processes of one host that only costs. It is
// left alone on a real network, where the administrator chose it. Before connect(): a connection
// that has once begun with bbr goes on pacing under any other.
void choose_congestion_control(const Fd& socket, const Address& remote) {
  if (!remote.loopback()) {
    const Result<Address> local = address_towards(remote);
    if (!local.ok() || !local->same_host(remote)) return;
  }
  for (const std::string_view name : {"cubic", "reno"}) {
    if (setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(),
                   static_cast<socklen_t>(name.size())) == 0)
      return;
  }
}

struct LocalName {
  sockaddr_un storage{};
  socklen_t size_bytes = 0;
};

Result<LocalName> local_name(const std::string& name) {
  LocalName made;
  made.storage.sun_family = AF_UNIX;
  // The leading zero byte makes the name abstract; the name is not terminated.
  if (name.empty() || name.size() + 1 > sizeof made.storage.sun_path)
    return invalid(fmt::format("'{}' is no name for a local socket: it takes 1 to {} characters",
                               name, sizeof made.storage.sun_path - 1));
  std::memcpy(made.storage.sun_path + 1, name.data(), name.size());
  made.size_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return made;
}

int socket_type(LocalKind kind) {
  return kind == LocalKind::kStream ? SOCK_STREAM : SOCK_SEQPACKET;
}

}  // namespace

void Fd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

uint16_t Address::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  if (family() == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return 0;
}

bool Address::same_host(const Address& other) const {
  const Bytes mine = host_bytes(*this);
  const Bytes theirs = host_bytes(other);
  return family() == other.family() &&
         std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end());
}

bool Address::loopback() const {
  const Bytes host = host_bytes(*this);
  if (family() == AF_INET) return host[0] == std::byte{127};
  return family() == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
}

std::string to_string(const Address& address) {
  std::array<char, NI_MAXHOST> host{};
  if (getnameinfo(raw(address), address.size_bytes, host.data(), host.size(), nullptr, 0,
                  NI_NUMERICHOST) != 0)
    return "an unknown address";
  if (address.family() == AF_INET6) return fmt::format("[{}]:{}", host.data(), address.port());
  return fmt::format("{}:{}", host.data(), address.port());
}

Result<Address> parse_address(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  // getaddrinfo also reads "1" and "0x7f000001"; four numbers or a colon are what people mean.
  const bool shaped =
      host.find(':') != std::string::npos || std::count(host.begin(), host.end(), '.') == 3;
  const std::string service = std::to_string(port);
  if (!shaped || getaddrinfo(host.c_str(), service.c_str(), &hints, &found) != 0)
    return invalid(fmt::format("'{}' is no numeric IPv4 or IPv6 address", host));
  Address address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.size_bytes = found->ai_addrlen;
  freeaddrinfo(found);
  return address;
}

Result<Address> parse_endpoint(const std::string& text) {
  const Error error =
      invalid(fmt::format("'{}' is no endpoint: write 10.0.0.7:4711 or [::1]:4711", text));
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return error;
  std::string host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  // Without brackets the last group of an IPv6 address would be taken for a port.
  if (bracketed != (host.find(':') != std::string::npos)) return error;
  uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data() + colon + 1, end, port);
  if (read.ec != std::errc{} || read.ptr != end) return error;
  Result<Address> address = parse_address(host, port);
  if (!address.ok()) return error;
  return address;
}

Result<Fd> listen_tcp(const Address& address, Duration silence_max) {
  Result<Fd> fd = open_socket(address.family(), SOCK_STREAM);
  if (!fd.ok()) return fd;
  tune_tcp(*fd, silence_max);
  // A port whose last connections are still winding down may be taken again at once; one that is
  // being listened on may not.
  set_option(*fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.family() == AF_INET6) set_option(*fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (bind(fd->get(), raw(address), address.size_bytes) != 0 ||
      ::listen(fd->get(), kBacklog) != 0) {
    if (errno == EADDRINUSE)
      return invalid(fmt::format("cannot listen on {}: the port is in use; choose another or 0",
                                 to_string(address)));
    return system_error("cannot listen on " + to_string(address));
  }
  return fd;
}

Result<Fd> connect_tcp(const Address& address, Duration silence_max) {
  Result<Fd> fd = open_socket(address.family(), SOCK_STREAM);
  if (!fd.ok()) return fd;
  tune_tcp(*fd, silence_max);
  choose_congestion_control(*fd, address);
  if (connect(fd->get(), raw(address), address.size_bytes) != 0 && errno != EINPROGRESS)
    return system_error("cannot connect to " + to_string(address));
  return fd;
}

Status connect_status(const Fd& socket) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) {
    errno = error;
    return system_error("cannot connect");
  }
  // A dial to a free port of the own host may meet itself; nobody else is there.
  const Result<Address> local = local_address(socket);
  const Result<Address> remote = remote_address(socket);
  if (!remote.ok()) return remote.error();
  if (local.ok() && local->same_host(*remote) && local->port() == remote->port())
    return invalid("cannot connect: Connection refused");
  return {};
}

Result<Fd> accept_from(const Fd& listener) {
  while (true) {
    Fd fd(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) return fd;
    // The one that waited gave up; the next may not have.
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Fd{};
    return system_error("cannot accept a connection");
  }
}

Result<Address> local_address(const Fd& socket) {
  Address address;
  address.size_bytes = sizeof address.storage;
  if (getsockname(socket.get(), raw(address), &address.size_bytes) != 0)
    return system_error("a socket has no address");
  return address;
}

Result<Address> remote_address(const Fd& socket) {
  Address address;
  address.size_bytes = sizeof address.storage;
  if (getpeername(socket.get(), raw(address), &address.size_bytes) != 0)
    return system_error("a socket has no peer");
  return address;
}

Result<Address> address_towards(const Address& target) {
  const Result<Fd> probe = open_socket(target.family(), SOCK_DGRAM);
  if (!probe.ok()) return probe.error();
  if (connect(probe->get(), raw(target), target.size_bytes) != 0)
    return system_error("no way to " + to_string(target));
  return local_address(*probe);
}

Result<Fd> listen_local(const std::string& name, LocalKind kind) {
  const Result<LocalName> address = local_name(name);
  if (!address.ok()) return address.error();
  Result<Fd> fd = open_socket(AF_UNIX, socket_type(kind));
  if (!fd.ok()) return fd;
  if (bind(fd->get(), reinterpret_cast<const sockaddr*>(&address->storage), address->size_bytes) !=
          0 ||
      ::listen(fd->get(), kBacklog) != 0)
    return system_error(fmt::format("cannot listen on the local socket '{}'", name));
  return fd;
}

Result<Fd> connect_local(const std::string& name, LocalKind kind) {
  const Result<LocalName> address = local_name(name);
  if (!address.ok()) return address.error();
  Result<Fd> fd = open_socket(AF_UNIX, socket_type(kind));
  if (!fd.ok()) return fd;
  if (connect(fd->get(), reinterpret_cast<const sockaddr*>(&address->storage),
              address->size_bytes) != 0)
    return system_error(fmt::format("cannot connect to the local socket '{}'", name));
  return fd;
}

Result<Credentials> peer_credentials(const Fd& socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return system_error("cannot tell who connected");
  return Credentials{credentials.pid, credentials.uid};
}

Result<size_t> send_descriptors(const Fd& socket, Bytes bytes, std::span<const int> descriptors) {
  PLIANT_CHECK(!bytes.empty() && descriptors.size() <= kDescriptorsMax,
               "descriptors travel with at least one byte, a few at a time");
  iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorsMax * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(head), descriptors.data(), descriptors.size_bytes());
  }
  while (true) {
    const ssize_t taken = sendmsg(socket.get(), &message, MSG_NOSIGNAL);
    if (taken >= 0) return static_cast<size_t>(taken);
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    return system_error("cannot send to a local peer");
  }
}

Result<Received> receive_descriptors(const Fd& socket, std::span<std::byte> room) {
  iovec piece{room.data(), room.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorsMax * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = -1;
  do {
    got = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  Received received;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return received;
  if (got < 0) return system_error("cannot receive from a local peer");
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    std::array<int, kDescriptorsMax> descriptors{};
    const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    std::memcpy(descriptors.data(), CMSG_DATA(head), count * sizeof(int));
    for (size_t i = 0; i < count; ++i) received.descriptors.emplace_back(descriptors[i]);
  }
  // The kernel has closed what did not fit; what did is closed with `received`.
  if ((message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) != 0)
    return invalid("a local peer sent more bytes or descriptors than there is room for");
  received.state = got == 0 ? Received::State::kClosed : Received::State::kData;
  received.size_bytes = static_cast<size_t>(got);
  return received;
}

}  // namespace pliant
