// Runs a fuzz target without libFuzzer: a bounded number of inputs, the same for the same seed.
//
//   fuzz_x [--runs N] [--seed S] [corpus folder or file...]
//
// With --runs (or with no arguments), inputs are random bytes and mutations of the corpus and of
// earlier inputs. With files alone, each is replayed once. The input in flight stands in a mapped
// file, so it survives however the target dies: fuzz_x.crash in the working directory is what to
// replay, and is gone after a clean run.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Input = std::vector<uint8_t>;
constexpr size_t kInputBytesMax = 4096;
constexpr size_t kMutantsMax = 1024;

[[noreturn]] void die(const std::string& message) {
  std::fprintf(stderr, "fuzz: %s\n", message.c_str());
  std::exit(2);
}

// The file that holds the input in flight.
class Flight {
 public:
  explicit Flight(std::string path) : path_(std::move(path)) {
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0 || ftruncate(fd_, kInputBytesMax) != 0) die("cannot write " + path_);
    void* mapped = mmap(nullptr, kInputBytesMax, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (mapped == MAP_FAILED) die("cannot map " + path_);
    memory_ = static_cast<uint8_t*>(mapped);
  }
  ~Flight() {
    munmap(memory_, kInputBytesMax);
    close(fd_);
    unlink(path_.c_str());
  }
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  void run(const Input& input) {
    // The file's length is the input's; the mapping is only touched inside it.
    if (ftruncate(fd_, static_cast<off_t>(input.size())) != 0) die("cannot resize " + path_);
    if (!input.empty()) std::memcpy(memory_, input.data(), input.size());
    // A copy of exactly this size, so that a sanitizer sees a read past the end.
    const Input exact(input.begin(), input.end());
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
  }

 private:
  std::string path_;
  int fd_ = -1;
  uint8_t* memory_ = nullptr;
};

// The standard's distributions differ between libraries; this does not.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  size_t below(size_t bound) { return static_cast<size_t>(engine_() % bound); }
  uint8_t byte() { return static_cast<uint8_t>(engine_()); }

 private:
  std::mt19937_64 engine_;
};

// Values at which decoders go wrong: limits, signs, off by one.
uint64_t edge(Dice& dice) {
  constexpr uint64_t kEdges[] = {0,           1,          0x7f,       0x80,       0xff,
                                 0xffff,      0x7fffffff, 0x80000000, 0xffffffff, UINT64_MAX / 2,
                                 ~uint64_t{0}};
  return kEdges[dice.below(std::size(kEdges))] - (dice.below(4) == 0 ? 1 : 0);
}

void mutate_once(Input& input, const Input& other, Dice& dice) {
  const size_t at = dice.below(input.size() + 1);
  const auto where = input.begin() + static_cast<std::ptrdiff_t>(at);
  switch (dice.below(7)) {
    case 0:  // cut short
      input.erase(where, input.end());
      break;
    case 1:  // flip a bit
      if (at < input.size()) input[at] ^= static_cast<uint8_t>(1U << dice.below(8));
      break;
    case 2:  // another byte
      if (at < input.size()) input[at] = dice.byte();
      break;
    case 3:  // one more byte
      input.insert(where, dice.byte());
      break;
    case 4: {  // a number of an awkward value, in each of the usual widths
      const uint64_t value = edge(dice);
      const size_t width = std::min(size_t{1} << dice.below(4), input.size() - at);
      if (width > 0) std::memcpy(&input[at], &value, width);
      break;
    }
    case 5: {  // remove a stretch
      const size_t length = dice.below(std::min<size_t>(input.size() - at, 16) + 1);
      input.erase(where, where + static_cast<std::ptrdiff_t>(length));
      break;
    }
    default: {  // splice: this one's head, another's tail
      const size_t from = dice.below(other.size() + 1);
      input.erase(where, input.end());
      input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
      break;
    }
  }
  if (input.size() > kInputBytesMax) input.resize(kInputBytesMax);
}

// The first `seeds` inputs of the corpus are those that were given. Nothing tells which mutations
// lead anywhere, so most steps start from a seed: a chain of mutations only drifts away from it.
Input next_input(const std::vector<Input>& corpus, size_t seeds, Dice& dice) {
  if (corpus.empty() || dice.below(8) == 0) {
    Input fresh(dice.below(dice.below(16) == 0 ? kInputBytesMax : 128));
    std::generate(fresh.begin(), fresh.end(), [&] { return dice.byte(); });
    return fresh;
  }
  const bool from_seed = seeds > 0 && dice.below(4) != 0;
  Input input = corpus[dice.below(from_seed ? seeds : corpus.size())];
  const Input& other = corpus[dice.below(corpus.size())];
  do {
    mutate_once(input, other, dice);
  } while (dice.below(2) == 0);
  return input;
}

Input read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) die("cannot read " + path.string());
  Input input{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (input.size() > kInputBytesMax) die(path.string() + " is too large");
  return input;
}

void collect(const std::filesystem::path& path, std::vector<Input>& inputs) {
  if (!std::filesystem::is_directory(path)) {
    inputs.push_back(read(path));
    return;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());  // or the same seed would mean different runs
  for (const auto& file : files) inputs.push_back(read(file));
}

uint64_t number(const char* text) {
  char* end = nullptr;
  const uint64_t value = std::strtoull(text, &end, 10);
  if (end == text || *end != '\0') die(std::string("no number: ") + text);
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t runs = argc == 1 ? 100000 : 0;
  uint64_t seed = 1;
  std::vector<Input> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool is_option = argument == "--runs" || argument == "--seed";
    if (is_option && i + 1 == argc) die(argument + " needs a number");
    if (is_option) {
      (argument == "--runs" ? runs : seed) = number(argv[++i]);
    } else {
      collect(argument, corpus);
    }
  }

  const std::string name = std::filesystem::path(argv[0]).filename().string();
  Flight flight(name + ".crash");
  Dice dice(seed);
  for (const Input& input : corpus) flight.run(input);
  const size_t seeds = corpus.size();
  for (uint64_t run = 0; run < runs; ++run) {
    Input input = next_input(corpus, seeds, dice);
    flight.run(input);
    // Mutations of mutations reach deeper; a full corpus forgets at random, but never a seed.
    if (corpus.size() < seeds + kMutantsMax) {
      corpus.push_back(std::move(input));
    } else {
      corpus[seeds + dice.below(kMutantsMax)] = std::move(input);
    }
  }
  std::printf("%s: %zu inputs, seed %llu: no fault found\n", name.c_str(),
              static_cast<size_t>(runs), static_cast<unsigned long long>(seed));
  return 0;
}
