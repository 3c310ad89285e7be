// Gloo as a contender: its TCP transport, rendezvous through files, and a choice of its algorithms.
//
// Gloo has two generations of all-reduce: ring and bcube come from the newer function, the others
// from the older classes. The best of them is what Gloo can do.
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>

#include "driver.h"

namespace {

constexpr uint32_t kTensorTag = 1;
constexpr uint32_t kNumberTag = 2;

class Gloo final : public peers::Contender {
 public:
  Gloo(std::shared_ptr<gloo::Context> context, std::string algorithm)
      : context_(std::move(context)), algorithm_(std::move(algorithm)) {}

  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }

  void prepare(size_t count) override {
    all_reduce_ = nullptr;  // it refers to the old memory
    float* data = memory_.resize(count);
    if (algorithm_ == "halving-doubling") {
      use<gloo::AllreduceHalvingDoubling<float>>(data, count);
    } else if (algorithm_ == "ring-chunked") {
      use<gloo::AllreduceRingChunked<float>>(data, count);
    } else {
      // The options own the buffers that Gloo registers, so they are made once for a size.
      auto options = std::make_shared<gloo::AllreduceOptions>(context_);
      options->setAlgorithm(algorithm_ == "bcube" ? gloo::AllreduceOptions::Algorithm::BCUBE
                                                  : gloo::AllreduceOptions::Algorithm::RING);
      set_sum(*options, data, count, kTensorTag);
      all_reduce_ = [options] { gloo::allreduce(*options); };
    }
  }
  float* input() override { return memory_.data(); }
  const float* result() const override { return memory_.data(); }
  void all_reduce() override { all_reduce_(); }

  void barrier() override {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  }

  float sum(float value) override {
    gloo::AllreduceOptions options(context_);
    set_sum(options, &value, 1, kNumberTag);
    gloo::allreduce(options);
    return value;
  }

 private:
  template <typename Algorithm>
  void use(float* data, size_t count) {
    auto algorithm =
        std::make_shared<Algorithm>(context_, std::vector<float*>{data}, static_cast<int>(count));
    all_reduce_ = [algorithm] { algorithm->run(); };
  }

  static void set_sum(gloo::AllreduceOptions& options, float* data, size_t count, uint32_t tag) {
    options.setOutput(data, count);  // and input
    options.setTag(tag);
    void (*add)(void*, const void*, const void*, size_t) = &gloo::sum<float>;
    options.setReduceFunction(add);
  }

  std::shared_ptr<gloo::Context> context_;
  std::string algorithm_;
  peers::PlainMemory memory_;
  std::function<void()> all_reduce_;
};

int run(int argc, char** argv) {
  const int rank = std::atoi(peers::argument(argc, argv, "--rank", "0").c_str());
  const int size = std::atoi(peers::argument(argc, argv, "--size", "1").c_str());
  const std::string algorithm = peers::argument(argc, argv, "--algorithm", "ring");
  if (algorithm != "ring" && algorithm != "bcube" && algorithm != "halving-doubling" &&
      algorithm != "ring-chunked")
    peers::fail("--algorithm: unknown '" + algorithm + "'");

  gloo::rendezvous::FileStore store(peers::argument(argc, argv, "--store", ""));
  gloo::transport::tcp::attr where(peers::argument(argc, argv, "--address", "127.0.0.1").c_str());
  auto device = gloo::transport::tcp::CreateDevice(where);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  context->setTimeout(std::chrono::seconds(60));
  context->connectFullMesh(store, device);
  Gloo contender(context, algorithm);
  return peers::measure(contender, peers::parse_options(argc, argv));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    peers::fail(std::string("gloo: ") + error.what());
  }
}
