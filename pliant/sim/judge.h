// The checkers: they stand outside, are told what every member begins, installs and commits, and
// compare it with a serial replay.
//
// The replay is a tree: a node is the state after a committed step, its children differ in who
// contributed which samples to the next one. Members of the newest view must all be on one branch.
// A member that is out of the view may have committed a step that the others did again without it:
// a branch that nobody goes on with. Owned by a History; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "pliant/membership/view.h"
#include "pliant/sim/world.h"

namespace pliant::sim {

// Integers, so that sums are exact in any order.
using Vector = std::vector<int64_t>;

// What a sample adds to an element of the state: depends on both, so that a step applied to another
// state, or to the right one twice, shows.
inline int64_t gradient(uint64_t sample, size_t element, int64_t state) {
  const uint64_t mixed = (sample + 1) * 0x9e3779b97f4a7c15u + element * 0xbf58476d1ce4e5b9u +
                         static_cast<uint64_t>(state) * 7;
  return static_cast<int64_t>((mixed ^ (mixed >> 29)) & 0xffff) - 0x7fff;
}

class Judge final {
 public:
  // What a member hands out of a committed step.
  struct Commit {
    uint64_t step = 0;
    Vector result;                  // of the whole model
    std::set<int> contributors;     // by what they added to the result
    uint64_t counted_samples = 0;   // as added up by the operation
    int reported_contributors = 0;  // as the member was told
    uint64_t reported_samples = 0;
    std::set<uint64_t> samples;  // as the member was told, too
    uint64_t batch = 0;          // that the step was dealt out by
  };

  explicit Judge(World& world);
  ~Judge();

  // The number by which a member is known here.
  int enter(PeerId peer);
  void published(const View& view);
  void installed(int member, const View& view);
  void begun(int member, uint64_t step, const std::vector<uint64_t>& samples, const Vector& state);
  // A step with a constant batch has dealt further samples to a member that has begun it.
  void dealt_more(int member, uint64_t step, const std::vector<uint64_t>& samples);
  void committed(int member, const Commit& commit, const Vector& state_after);

  uint64_t commits() const { return commits_; }
  uint64_t steps() const { return steps_; }
  const View& newest() const { return newest_; }
  uint64_t committed_by(int member) const;

 private:
  // Contributors and samples: a member that is lost may have committed a step with fewer samples of
  // the same members than the others after it.
  using Parts = std::pair<std::set<int>, std::set<uint64_t>>;
  struct Node {
    const Node* parent = nullptr;
    uint64_t step = 0;
    uint64_t batch = 0;
    Vector state;
    uint64_t epoch = 0;          // of training
    std::vector<bool> consumed;  // its samples
    uint64_t consumed_count = 0;
    std::map<Parts, std::unique_ptr<Node>> children;
  };
  struct Begun {
    uint64_t step = 0;
    const Node* node = nullptr;
    std::vector<std::vector<uint64_t>> samples;  // at first, and each time that there were more
  };
  struct Known {
    PeerId peer;
    uint32_t epoch = 0;
    const Node* node = nullptr;
    std::vector<Begun> begun;  // a stopped member may be many steps behind
  };

  const Node* find_state(uint64_t step, const Vector& state) const;
  Node* replay(Node& parent, const Commit& commit, const std::string& who);
  std::optional<std::set<uint64_t>> dealt_of(const Node& parent, const Parts& parts,
                                             const std::string& who);
  bool has_batch(const Commit& commit, const std::string& who);
  bool consume(Node& node, const std::set<uint64_t>& samples);
  bool has_whole_batch(const Node& node, const std::set<uint64_t>& samples);
  const Begun* find_begun(int member, uint64_t step) const;
  void compare_with_view(int member, const Node& node);
  std::string name(int member) const;

  World& world_;
  std::vector<Known> members_;
  std::map<uint32_t, View> views_;  // by epoch
  View newest_;
  Node root_;
  std::map<uint64_t, std::vector<Node*>> by_step_;
  uint64_t commits_ = 0;
  uint64_t steps_ = 0;
};

}  // namespace pliant::sim
