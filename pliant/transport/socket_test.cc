#include "pliant/transport/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

namespace pliant {
namespace {

// Waits for the kernel, which is not ours to turn.
bool ready(const Fd& fd, short events) {
  pollfd entry{fd.get(), events, 0};
  return ::poll(&entry, 1, 30'000) == 1;
}

// Two ends of one local connection.
std::pair<Fd, Fd> connected_pair(const std::string& name, LocalKind kind) {
  const Result<Fd> listener = listen_local(name, kind);
  Result<Fd> client = connect_local(name, kind);
  Result<Fd> server = accept_from(*listener);
  return {std::move(*client), std::move(*server)};
}

std::string unique_name() { return "pliant-socket-test-" + std::to_string(getpid()); }

TEST(Socket, ReadsAddressesAndWritesThemBack) {
  for (const std::string text : {"127.0.0.1:80", "10.1.2.3:65535", "[::1]:4711", "[fe80::2]:1"}) {
    const Result<Address> address = parse_endpoint(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(to_string(*address), text);
  }
  EXPECT_TRUE(parse_endpoint("127.9.9.9:1")->loopback());
  EXPECT_TRUE(parse_endpoint("[::1]:1")->loopback());
  EXPECT_FALSE(parse_endpoint("10.0.0.1:1")->loopback());
  EXPECT_TRUE(parse_endpoint("10.0.0.1:1")->same_host(*parse_endpoint("10.0.0.1:2")));
  EXPECT_FALSE(parse_endpoint("10.0.0.1:1")->same_host(*parse_endpoint("10.0.0.2:1")));
}

TEST(Socket, RefusesWhatIsNoAddress) {
  for (const std::string text :
       {"", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:8 ",
        "127.0.0.1:8x", "localhost:80", "1:80", "::1:80", "[::1]", "[::1]80", "[127.0.0.1]:80",
        "[::1:80", "256.0.0.1:80", "[:::]:80", "1.2.3.4.5:80"}) {
    const Result<Address> address = parse_endpoint(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.code(), Code::kInvalid);
  }
}

TEST(Socket, ConnectsOverTcp) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    const Result<Fd> listener = listen_tcp(*parse_address(host, 0));
    ASSERT_TRUE(listener.ok());
    EXPECT_FALSE(accept_from(*listener)->valid()) << "nobody waits";
    const Result<Address> address = local_address(*listener);
    const Result<Fd> client = connect_tcp(*address);
    ASSERT_TRUE(client.ok());
    ASSERT_TRUE(ready(*client, POLLOUT));
    EXPECT_TRUE(connect_status(*client).ok());
    ASSERT_TRUE(ready(*listener, POLLIN));
    const Result<Fd> server = accept_from(*listener);
    ASSERT_TRUE(server->valid());
    EXPECT_EQ(remote_address(*server)->port(), local_address(*client)->port());
    for (const Fd* fd : {&*client, &*server}) {
      EXPECT_NE(fcntl(fd->get(), F_GETFL) & O_NONBLOCK, 0);
      EXPECT_NE(fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, 0);
    }
  }
}

TEST(Socket, SaysThatAPortIsInUse) {
  const Result<Fd> first = listen_tcp(*parse_address("127.0.0.1", 0));
  const Result<Fd> second = listen_tcp(*local_address(*first));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.code(), Code::kInvalid);
  EXPECT_NE(second.error().message.find("in use"), std::string::npos) << second.error().message;
}

// A connection that began with bbr would be paced to its end.
TEST(Socket, ConnectionsInsideTheHostAreNotPaced) {
  std::vector<Address> own = {*parse_address("127.0.0.1", 0), *parse_address("::1", 0)};
  ifaddrs* interfaces = nullptr;
  ASSERT_EQ(getifaddrs(&interfaces), 0);
  for (const ifaddrs* at = interfaces; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
    Address address;
    std::memcpy(&address.storage, at->ifa_addr, sizeof(sockaddr_in));
    address.size_bytes = sizeof(sockaddr_in);
    own.push_back(address);
  }
  freeifaddrs(interfaces);
  for (const Address& address : own) {
    const Result<Fd> listener = listen_tcp(address);
    ASSERT_TRUE(listener.ok()) << to_string(address);
    const Result<Fd> client = connect_tcp(*local_address(*listener));
    ASSERT_TRUE(client.ok()) << to_string(address);
    std::array<char, 16> name{};
    socklen_t size = name.size();
    ASSERT_EQ(getsockopt(client->get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &size), 0);
    EXPECT_TRUE(std::string(name.data()) == "cubic" || std::string(name.data()) == "reno")
        << name.data() << " to " << to_string(address);
  }
}

TEST(Socket, SaysThatNobodyListens) {
  uint16_t port = 0;
  {
    const Result<Fd> listener = listen_tcp(*parse_address("127.0.0.1", 0));
    port = local_address(*listener)->port();
  }
  const Result<Fd> client = connect_tcp(*parse_address("127.0.0.1", port));
  if (!client.ok()) return;  // the kernel may know at once
  ASSERT_TRUE(ready(*client, POLLOUT));
  const Status status = connect_status(*client);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("refused"), std::string::npos);
}

TEST(Socket, PassesDescriptorsBetweenLocalPeers) {
  for (const LocalKind kind : {LocalKind::kStream, LocalKind::kPackets}) {
    const auto [client, server] = connected_pair(unique_name(), kind);
    std::array<std::byte, 64> room{};
    EXPECT_EQ(receive_descriptors(server, room)->state, Received::State::kNothingYet);

    const Fd memory(memfd_create("shared", MFD_CLOEXEC));
    ASSERT_EQ(write(memory.get(), "hello", 5), 5);
    const std::array descriptors = {memory.get(), memory.get()};
    const std::array bytes = {std::byte{1}, std::byte{2}, std::byte{3}};
    EXPECT_EQ(*send_descriptors(client, bytes, descriptors), 3u);
    const Result<Received> received = receive_descriptors(server, room);
    ASSERT_TRUE(received.ok());
    EXPECT_EQ(received->state, Received::State::kData);
    EXPECT_EQ(received->size_bytes, 3u);
    EXPECT_EQ(room[2], std::byte{3});
    ASSERT_EQ(received->descriptors.size(), 2u);
    std::array<char, 5> text{};
    EXPECT_EQ(pread(received->descriptors[1].get(), text.data(), text.size(), 0), 5);
    EXPECT_EQ(std::string(text.data(), text.size()), "hello");
    EXPECT_NE(fcntl(received->descriptors[0].get(), F_GETFD) & FD_CLOEXEC, 0);

    EXPECT_EQ(*send_descriptors(client, bytes, {}), 3u);
    EXPECT_TRUE(receive_descriptors(server, room)->descriptors.empty());
  }
}

TEST(Socket, TellsTheEndOfALocalConnection) {
  auto [client, server] = connected_pair(unique_name(), LocalKind::kPackets);
  client.reset();
  std::array<std::byte, 8> room{};
  EXPECT_EQ(receive_descriptors(server, room)->state, Received::State::kClosed);
  EXPECT_FALSE(send_descriptors(server, room, {}).ok());
}

TEST(Socket, RefusesMoreThanThereIsRoomFor) {
  const auto [client, server] = connected_pair(unique_name(), LocalKind::kPackets);
  const std::array<std::byte, 9> bytes{};
  ASSERT_TRUE(send_descriptors(client, bytes, std::array{client.get()}).ok());
  std::array<std::byte, 8> room{};
  EXPECT_FALSE(receive_descriptors(server, room).ok());
}

TEST(Socket, KnowsWhoIsAtTheOtherEnd) {
  const auto [client, server] = connected_pair(unique_name(), LocalKind::kStream);
  const Result<Credentials> credentials = peer_credentials(server);
  ASSERT_TRUE(credentials.ok());
  EXPECT_EQ(credentials->pid, getpid());
  EXPECT_EQ(credentials->uid, getuid());
}

TEST(Socket, RefusesALocalNameThatIsTakenMissingOrTooLong) {
  const Result<Fd> listener = listen_local(unique_name(), LocalKind::kStream);
  ASSERT_TRUE(listener.ok());
  EXPECT_FALSE(listen_local(unique_name(), LocalKind::kStream).ok());
  EXPECT_FALSE(connect_local(unique_name() + "-nobody", LocalKind::kStream).ok());
  EXPECT_FALSE(listen_local("", LocalKind::kStream).ok());
  EXPECT_FALSE(listen_local(std::string(200, 'x'), LocalKind::kStream).ok());
}

TEST(Fd, OwnsItsDescriptor) {
  Fd first(dup(0));
  const int raw = first.get();
  Fd second = std::move(first);
  EXPECT_FALSE(first.valid());
  EXPECT_EQ(second.get(), raw);
  second.reset();
  EXPECT_EQ(fcntl(raw, F_GETFD), -1);
  EXPECT_EQ(errno, EBADF);
}

}  // namespace
}  // namespace pliant
