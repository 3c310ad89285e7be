// A worker for the fault tests: reduces in a loop until an operation fails, then says how.
//   fault_worker --bytes N --buffer registered|plain [--async yes] [--steps yes] [--rounds N]
// It prints "running" after its first operation and, at the error, one JSON line.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "pliant/base/time.h"
#include "pliant/runtime/session.h"

namespace {

std::string option(int argc, char** argv, const std::string& name, const std::string& otherwise) {
  for (int i = 1; i + 1 < argc; ++i)
    if (name == argv[i]) return argv[i + 1];
  return otherwise;
}

int fail(const pliant::Session* session, const pliant::Error& error) {
  const pliant::Rank rank = session == nullptr ? -1 : session->rank();
  const pliant::Rank peer = session == nullptr ? -1 : session->view().rank_of(error.peer);
  std::printf("{\"rank\": %d, \"code\": \"%s\", \"peer\": %d, \"at\": %.6f, \"message\": \"%s\"}\n",
              rank, pliant::to_string(error.code), peer,
              pliant::seconds(pliant::now().time_since_epoch()), error.message.c_str());
  std::fflush(stdout);
  return 3;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t bytes = std::stoul(option(argc, argv, "--bytes", "1048576"));
  const long rounds = std::stol(option(argc, argv, "--rounds", "1000000000"));
  const bool registered = option(argc, argv, "--buffer", "registered") == "registered";
  const bool async = option(argc, argv, "--async", "no") == "yes";
  const bool steps = option(argc, argv, "--steps", "no") == "yes";

  auto opened = pliant::Session::open();
  if (!opened) return fail(nullptr, opened.error());
  pliant::Session& session = **opened;
  std::vector<std::byte> plain(registered ? 0 : bytes);
  std::byte* data = plain.data();
  if (registered) {
    auto memory = session.allocate(bytes);
    if (!memory) return fail(&session, memory.error());
    data = memory->data();
  }
  pliant::Operation operation;
  operation.name = "gradients";
  operation.input = data;
  operation.output = data;
  operation.count = bytes / sizeof(float);
  const auto run_step = [&]() -> pliant::Status {
    pliant::Step step = session.begin_step();
    if (!step) return session.status();
    PLIANT_TRY(step.all_reduce(operation.name, data, operation.count, pliant::DType::kF32,
                               pliant::Op::kSum));
    return step.commit();
  };
  for (long round = 0; round < rounds; ++round) {
    pliant::Status status = steps   ? run_step()
                            : async ? session.start(operation).wait()
                                    : session.run(operation);
    if (!status) return fail(&session, status.error());
    if (round == 0) {
      std::printf("{\"running\": %d, \"pid\": %d}\n", session.rank(), getpid());
      std::fflush(stdout);
    }
  }
  return 0;
}
