#include "cli/chaos_check.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "pliant/base/checksum.h"

namespace pliant::cli {
namespace {

constexpr size_t kDivergencesMax = 20;

class Judge final {
 public:
  explicit Judge(ChaosVerdict& verdict) : verdict_(verdict) {}

  // One record a step, checked against every other record of that step.
  void collect(const std::map<int, std::vector<ChaosRecord>>& workers) {
    for (const auto& [pid, records] : workers) {
      uint64_t last = 0;
      uint32_t epoch = 0;
      for (const ChaosRecord& record : records) {
        ++verdict_.commits;
        if (last != 0 && record.step != last + 1)
          say("worker {} went from step {} to {}", pid, last, record.step);
        if (record.epoch < epoch)
          say("worker {} went back from epoch {} to {}", pid, epoch, record.epoch);
        last = record.step;
        epoch = record.epoch;
        // The newest view's counts, should they differ.
        const auto [at, first] = steps_.emplace(record.step, record);
        if (!first && record.epoch > at->second.epoch) at->second = record;
      }
    }
    for (const auto& [pid, records] : workers)
      for (const ChaosRecord& record : records) compare(record, pid, &record == &records.back());
    verdict_.steps = steps_.size();
  }

  void replay(uint64_t samples) {
    std::vector<uint64_t> state(kStateElements, 1);
    uint64_t whole_sum = 0;
    for (uint64_t sample = 0; sample < samples; ++sample) whole_sum += mix_sample(sample);
    uint64_t expected = 1;
    uint64_t seen = 0;
    uint64_t sum = 0;
    for (const auto& [step, record] : steps_) {
      if (step != expected++) return say("no worker committed step {}", expected - 1);
      apply_step(state, record.sample_sum);
      const uint64_t replayed = checksum64(std::as_bytes(std::span(state)));
      if (record.state != replayed)
        return say("after step {} the state is {:x}, a serial replay gives {:x}", step,
                   record.state, replayed);
      seen += record.samples;
      sum += record.sample_sum;
      if (seen > samples) return say("step {} consumes a sample of its epoch twice", step);
      if (seen < samples) continue;
      if (sum != whole_sum) say("the epoch that ends with step {} is not each sample once", step);
      ++verdict_.epochs_complete;
      seen = 0;
      sum = 0;
    }
  }

 private:
  void compare(const ChaosRecord& other, int pid, bool is_last) {
    const ChaosRecord& first = steps_.at(other.step);
    const bool same_state = first.state == other.state;
    const bool same_inputs = first.samples == other.samples &&
                             first.sample_sum == other.sample_sum &&
                             first.contributors == other.contributors;
    if (same_state && same_inputs) return;
    if (is_last && other.epoch < first.epoch) {
      ++verdict_.lost_commits;
      return;
    }
    if (!same_state)
      say("step {}: worker {} has state {:x}, another {:x}", other.step, pid, other.state,
          first.state);
    if (!same_inputs)
      say("step {}: worker {} counts {} members and {} samples, another {} and {}", other.step, pid,
          other.contributors, other.samples, first.contributors, first.samples);
  }

  template <typename... Arguments>
  void say(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    if (verdict_.divergences.size() < kDivergencesMax)
      verdict_.divergences.push_back(fmt::format(text, std::forward<Arguments>(arguments)...));
  }

  ChaosVerdict& verdict_;
  std::map<uint64_t, ChaosRecord> steps_;
};

}  // namespace

Result<std::map<int, std::vector<ChaosRecord>>> read_chaos_records(const std::string& folder) {
  std::map<int, std::vector<ChaosRecord>> workers;
  std::error_code problem;
  for (const auto& entry : std::filesystem::directory_iterator(folder, problem)) {
    const std::string name = entry.path().filename().string();
    int pid = 0;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (read.ec != std::errc{} || read.ptr != name.data() + name.size()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    ChaosRecord record;
    while (file.read(reinterpret_cast<char*>(&record), sizeof record))
      workers[pid].push_back(record);
  }
  if (problem)
    return invalid(fmt::format("cannot read the folder '{}': {}", folder, problem.message()));
  return workers;
}

ChaosVerdict judge_chaos(const std::map<int, std::vector<ChaosRecord>>& workers,
                         const ChaosJudge& judge) {
  ChaosVerdict verdict;
  Judge made(verdict);
  made.collect(workers);
  made.replay(judge.samples);
  return verdict;
}

}  // namespace pliant::cli
