// One member of the measurement of reshape(); see bench/reshard/measure.py. Under `pliant run`:
//   reshard_driver --model gpt3-xl [--scale N] [--dtype f32] [--rounds N] [--keep] LAYOUT LAYOUT
// Goes from the first layout to the second and back, --rounds times, and in turns with that lets
// all members copy as many bytes as the change brings, by memcpy into memory that is there, and
// into fresh memory as a change must. Rank 0 prints a line of JSON for each.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "pliant/base/time.h"
#include "pliant/runtime/reshape.h"
#include "pliant/runtime/session.h"
#include "pliant/tensor/presets.h"

namespace {

using pliant::ReshapeReport;
using pliant::Result;
using pliant::Session;
using pliant::ShardedState;
using pliant::tensor::Layout;

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "reshard_driver: %s\n", message.c_str());
  std::_Exit(1);
}

template <typename T>
T checked(Result<T> result) {
  if (!result) fail(result.error().message);
  return std::move(*result);
}

void check(const pliant::Status& status) {
  if (!status.ok()) fail(status.error().message);
}

struct Options {
  std::string model = "gpt3-xl";
  std::string dtype = "f32";
  uint32_t scale = 1;  // so many times fewer layers
  int rounds = 3;
  bool keeps = false;  // the memory of the old layout, for the next change
  std::vector<std::string> layouts;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto next = [&] { return ++i < argc ? argv[i] : (fail(word + " needs a value"), ""); };
    if (word == "--model") {
      options.model = next();
    } else if (word == "--dtype") {
      options.dtype = next();
    } else if (word == "--scale") {
      options.scale = static_cast<uint32_t>(std::max(1, std::atoi(next())));
    } else if (word == "--rounds") {
      options.rounds = std::atoi(next());
    } else if (word == "--keep") {
      options.keeps = true;
    } else {
      options.layouts.push_back(word);
    }
  }
  if (options.layouts.size() != 2) fail("give two layouts, such as tp=8 dp=2,tp=4");
  return options;
}

// Seconds from the moment at which all begin to that at which all have ended.
double timed(Session& session, const std::function<void()>& work) {
  check(session.barrier("begin"));
  const pliant::Instant began = pliant::now();
  work();
  check(session.barrier("end"));
  return pliant::seconds(pliant::now() - began);
}

// Every member copies its share with as many threads as reshape() uses.
class Copies {
 public:
  static constexpr size_t kAreaBytes = size_t{512} << 20;

  explicit Copies(Session& session) : session_(session) {
    cpu_set_t set;
    const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    threads_ = static_cast<size_t>(std::max(1, cores / session.local_size()));
  }

  void prepare(size_t bytes) {
    bytes_ = bytes;
    const size_t area = std::min(kAreaBytes, std::max<size_t>(bytes, 1));
    source_.assign(area, std::byte{1});
    target_.assign(area, std::byte{2});
  }

  double warm() {
    return timed(session_, [&] { copy(target_.data(), target_.size()); });
  }
  double fresh() {
    std::span<std::byte> memory;
    const double seconds = timed(session_, [&] {
      memory = checked(session_.allocate(bytes_));
      copy(memory.data(), memory.size());
    });
    session_.release(memory);
    return seconds;
  }

 private:
  // `to` is used again from its beginning when it is shorter.
  void copy(std::byte* to, size_t to_bytes) {
    std::vector<std::thread> threads;
    for (size_t t = 0; t < threads_; ++t)
      threads.emplace_back([&, t] {
        constexpr size_t kChunk = size_t{4} << 20;
        for (size_t at = t * kChunk; at < bytes_; at += threads_ * kChunk) {
          const size_t length = std::min(kChunk, bytes_ - at);
          const size_t target = to_bytes == bytes_ ? at : at % to_bytes;
          const size_t source = at % source_.size();
          std::memcpy(to + target, source_.data() + source,
                      std::min({length, to_bytes - target, source_.size() - source}));
        }
      });
    for (std::thread& thread : threads) thread.join();
  }

  Session& session_;
  size_t threads_ = 1;
  size_t bytes_ = 0;
  std::vector<std::byte> source_;
  std::vector<std::byte> target_;
};

void print_change(Session& session, const std::string& from, const std::string& to,
                  const ReshapeReport& report, double seconds, double warm, double fresh) {
  if (session.rank() != 0) return;
  const auto total = static_cast<double>(report.totals.bytes_total);
  const auto& part = report.seconds;
  std::printf(
      "%s\n",
      fmt::format(R"({{"from": "{}", "to": "{}", "np": {}, "bytes_total": {}, "bytes_moved": {}, )"
                  R"("bytes_in_place": {}, "seconds": {:.6f}, "gb_per_s": {:.3f}, )"
                  R"("memcpy_gb_per_s": {:.3f}, "memcpy_fresh_gb_per_s": {:.3f}, )"
                  R"("ratio": {:.3f}, "ratio_fresh": {:.3f}, "plan_s": {:.6f}, )"
                  R"("allocate_s": {:.6f}, "copy_s": {:.6f}, "verify_s": {:.6f}, )"
                  R"("commit_s": {:.6f}, "peak_extra_bytes": {}}})",
                  from, to, session.size(), report.totals.bytes_total, report.totals.bytes_moved,
                  report.totals.bytes_in_place, seconds, total / seconds * 1e-9,
                  total / warm * 1e-9, total / fresh * 1e-9, warm / seconds, fresh / seconds,
                  part.plan, part.allocate, part.copy, part.verify, part.commit,
                  report.peak_extra_bytes)
          .c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const auto opened = checked(Session::open());
  Session& session = *opened;
  pliant::tensor::Model model = checked(pliant::tensor::find_model(options.model));
  model.layers = std::max(2u, model.layers / options.scale);  // so that stages have some
  const auto dtype = checked(pliant::parse_dtype(options.dtype));
  const auto collection = std::make_shared<const pliant::tensor::Collection>(
      checked(pliant::tensor::make_state(model, dtype)));
  std::vector<Layout> layouts;
  for (const std::string& text : options.layouts) {
    const auto parallelism = checked(pliant::tensor::parse_parallelism(text));
    layouts.push_back(checked(
        Layout::make(checked(pliant::tensor::make_spec(model, parallelism, 0)), collection)));
  }
  const pliant::ReshapeOptions how{.keeps_memory = options.keeps};
  ShardedState state = checked(ShardedState::allocate(session, layouts[0]));
  for (size_t b = 0; b < state.holding().buffers.size(); ++b)
    std::memset(state.buffer(b).data(), 17, state.buffer(b).size());
  Copies copies(session);
  for (int i = 0; i < 2 * options.rounds; ++i) {
    const size_t from = static_cast<size_t>(i) % 2;
    const Layout& to = layouts[1 - from];
    copies.prepare(to.holding(session.rank()).bytes());
    const double warm = copies.warm();
    const double fresh = copies.fresh();
    ReshapeReport report;
    const double seconds =
        timed(session, [&] { report = checked(reshape(session, state, to, how)); });
    print_change(session, options.layouts[from], options.layouts[1 - from], report, seconds, warm,
                 fresh);
  }
  return 0;
}
