// A worker for the test with several emulated hosts: checks collectives against their definition,
// says what `auto` chooses, waits for the network to change, and does both again.
//   hosts_worker --bytes N --changed FILE
#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "pliant/runtime/session.h"

namespace {

using pliant::DType;
using pliant::Op;

std::string option(int argc, char** argv, const std::string& name) {
  for (int i = 1; i + 1 < argc; ++i)
    if (name == argv[i]) return argv[i + 1];
  return "";
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "hosts_worker: %s\n", what.c_str());
  std::exit(1);
}

void check(const pliant::Status& status) {
  if (!status) fail(pliant::to_string(status.error()));
}

float value_of(pliant::Rank rank, size_t index) {
  return static_cast<float>((static_cast<size_t>(rank) + 1) * (index % 1000 + 1));
}

void check_all_reduce(pliant::Session& session, size_t count, bool registered) {
  std::vector<float> plain(registered ? 0 : count);
  float* data = plain.data();
  if (registered) data = session.allocate_array<float>(count)->data();
  float ranks = 0;
  for (pliant::Rank rank = 0; rank < session.size(); ++rank) ranks += static_cast<float>(rank + 1);
  for (size_t i = 0; i < count; ++i) data[i] = value_of(session.rank(), i);
  check(session.all_reduce(registered ? "registered" : "plain", data, data, count, DType::kF32,
                           Op::kSum));
  for (size_t i = 0; i < count; ++i)
    if (data[i] != ranks * static_cast<float>(i % 1000 + 1)) fail("a wrong sum");
}

void check_moves(pliant::Session& session, size_t count) {
  const auto size = static_cast<size_t>(session.size());
  std::vector<float> mine(count);
  for (size_t i = 0; i < count; ++i) mine[i] = value_of(session.rank(), i);
  std::vector<float> all(count * size);
  check(session.all_gather("gather", mine.data(), all.data(), count, DType::kF32));
  for (pliant::Rank rank = 0; rank < session.size(); ++rank)
    for (size_t i = 0; i < count; ++i)
      if (all[static_cast<size_t>(rank) * count + i] != value_of(rank, i)) fail("a wrong block");
  const pliant::Rank root = session.size() - 1;
  check(session.broadcast("spread", mine.data(), count, DType::kF32, root));
  for (size_t i = 0; i < count; ++i)
    if (mine[i] != value_of(root, i)) fail("a wrong broadcast");
}

void check_everything(pliant::Session& session, size_t bytes, const char* phase) {
  for (const size_t count : {size_t{1}, size_t{1000}, bytes / sizeof(float)}) {
    check_all_reduce(session, count, true);
    check_all_reduce(session, count, false);
    check_moves(session, count / 4 + 1);
  }
  if (session.rank() == 0) {
    std::printf("%s: %s\n", phase, session.explain(pliant::Collective::kAllReduce, bytes).c_str());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const size_t bytes = std::stoul(option(argc, argv, "--bytes"));
  const std::string changed = option(argc, argv, "--changed");
  auto opened = pliant::Session::open();
  if (!opened) fail(pliant::to_string(opened.error()));
  pliant::Session& session = **opened;
  check_everything(session, bytes, "before");
  struct stat info {};
  while (session.rank() == 0 && stat(changed.c_str(), &info) != 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  check(session.barrier("changed"));
  check(session.measure_links());
  check_everything(session, bytes, "after");
  // A strategy can be set by hand, and must be agreed on.
  check(session.set_strategy("ring"));
  check_everything(session, bytes / 8, "ring");
  if (session.set_strategy(session.rank() == 0 ? "star" : "tree").ok()) fail("agreed on two");
  if (session.strategy() != "ring") fail("the strategy changed without agreement");
  return 0;
}
