// What `pliant bench` is to measure: the options as they are written, and the plan made of them.
// The program and its workers read the same options, so both make the same plan. Pure values.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "pliant/collective/operation.h"
#include "pliant/runtime/options.h"

namespace pliant::cli {

struct BenchArguments {
  std::string op;
  std::string np = "2,4";
  std::string sizes = "1K,64K,1M,16M";
  std::string dtype = "f32";
  std::string op_kind = "sum";
  std::string strategy = "auto";
  std::string transport = "auto";
  std::string buffer = "registered";
  int64_t repetitions = 0;
  double seconds = 0.5;
  bool json = false;
  bool explain = false;
  bool progress = false;  // set by the program for its workers if a person watches
};

enum class BenchBuffer : uint8_t {
  kRegistered,  // memory of session.allocate
  kPlain,       // ordinary memory
  kShared,      // registered input; the result is shared by the ranks of a host
};

struct BenchPlan {
  BenchArguments arguments;
  Collective collective = Collective::kAllReduce;  // kSend stands for send_recv
  std::vector<int> nps;
  std::vector<uint64_t> sizes;  // in bytes
  DType dtype = DType::kF32;
  Op op = Op::kSum;
  BenchBuffer buffer = BenchBuffer::kRegistered;
};

// Adds the options to a subcommand, to be stored in `arguments`.
void add_bench_options(CLI::App& app, BenchArguments& arguments);

// The arguments of a worker of ours that measures the same.
std::vector<std::string> to_words(const BenchArguments& arguments);

// Everything that can be wrong is found here, before anything is started.
Result<BenchPlan> make_bench_plan(const BenchArguments& arguments);

// "all_reduce, reduce, ..."
std::string bench_op_names();

// True if `bytes` is the size of one rank's block, of which there is one a rank.
bool is_blockwise(Collective collective);
bool is_reducing(Collective collective);

// The rank that has the tensor or gets it. It is chosen so that rank 0, which holds the watch, is
// never done before the data has travelled.
Rank bench_root(Collective collective, Rank size);

}  // namespace pliant::cli
