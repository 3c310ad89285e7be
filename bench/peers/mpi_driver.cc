// Open MPI (or any MPI) as a contender: MPI_Allreduce in place on ordinary memory.
#define OMPI_SKIP_MPICXX 1  // its C++ bindings, long withdrawn, do not compile without warnings
#include <mpi.h>

#include "driver.h"

namespace {

class Mpi final : public peers::Contender {
 public:
  Mpi() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void prepare(size_t count) override {
    count_ = static_cast<int>(count);
    memory_.resize(count);
  }
  float* input() override { return memory_.data(); }
  const float* result() const override { return memory_.data(); }
  void all_reduce() override {
    MPI_Allreduce(MPI_IN_PLACE, memory_.data(), count_, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
  float sum(float value) override {
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return value;
  }

 private:
  int rank_ = 0;
  int size_ = 0;
  int count_ = 0;
  peers::PlainMemory memory_;
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);  // errors abort the job, by MPI's default
  int exit_code = 0;
  {
    Mpi mpi;
    exit_code = peers::measure(mpi, peers::parse_options(argc, argv));
  }
  MPI_Finalize();
  return exit_code;
}
