// A user's first program in C++: a session alone, and one all-reduce.
#include <pliant/runtime/session.h>

#include <cstdio>

int main() {
  auto session = pliant::Session::open();
  if (!session) {
    std::fprintf(stderr, "%s\n", pliant::to_string(session.error()).c_str());
    return 1;
  }
  const float input[3] = {1, 2, 3};
  float output[3] = {};
  const pliant::Status status =
      (*session)->all_reduce("sum", input, output, 3, pliant::DType::kF32, pliant::Op::kSum);
  if (!status) {
    std::fprintf(stderr, "%s\n", pliant::to_string(status.error()).c_str());
    return 1;
  }
  const bool right = output[0] == 1 && output[1] == 2 && output[2] == 3;
  std::printf("C++: size %d, sum %s\n", (*session)->size(), right ? "right" : "wrong");
  return right && (*session)->size() == 1 ? 0 : 1;
}
