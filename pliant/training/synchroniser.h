// The Synchroniser: how the members of a job keep their models together, in any of three ways, on
// flat buffers. It can change the way between two steps.
//
//   synchronous      g <- sum of all members' gradients / samples contributed (without a sampler:
//                    / members); everybody applies the same g, so that models stay equal, bit by
//                    bit.
//   model averaging  v <- (1 - alpha) v + alpha * mean of the contributors' v, then each member
//                    applies its own gradient (the mean over its own samples).
//   pair averaging   v <- (v + v of one other member) / 2, then each applies its own gradient. The
//                    other's is the newest model that it has published, at the end of a step.
//
// What goes over the network goes while the caller computes: models from begin() on, gradients from
// ready() on. docs/TRAINING.md has the rules, what happens to them when members come, go or die,
// and the loop around it:
//
//   while (Step step = session.begin_step()) {
//     PLIANT_TRY(synchroniser->begin(step));
//     bool apply = false;
//     do {
//       ... add the gradients of step.samples() up; synchroniser->ready(bucket) ...
//       auto committed = synchroniser->commit();
//       if (!committed) return committed.error();
//       apply = *committed;
//     } while (!apply && step.more());
//     if (!apply) break;
//     ... apply gradients to parameters ...
//     PLIANT_TRY(synchroniser->applied());
//   }
//
// Owned by the caller; called by the thread that trains. Borrows the session and the buckets'
// memory, which must outlive it and the session's steps.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pliant/base/time.h"
#include "pliant/collective/compression.h"
#include "pliant/policy/signals.h"
#include "pliant/runtime/session.h"
#include "pliant/training/compressed_gradients.h"

namespace pliant {

// A part of the model. Memory of Session::allocate() is reduced without a copy.
struct Bucket {
  std::string name;
  void* parameters = nullptr;
  // Of the caller's samples: their sum if the session has a sampler, otherwise what is to be
  // averaged over the members. Null: this is state that goes with the model, such as momentum; it
  // stays each member's own except that it is averaged where models are made equal.
  void* gradients = nullptr;
  size_t count = 0;
  DType dtype = DType::kF32;
};

// Whose model this member pulls in a step of pair averaging: a function of these alone, so that a
// run can be repeated. Another member of the view than `self`, each with the same probability;
// nothing if there is none.
std::optional<Rank> choose_partner(uint64_t seed, uint64_t step, PeerId self,
                                   std::span<const PeerId> members);

class Synchroniser final {
 public:
  // Those of the job's first member count; whoever joins takes them over.
  struct Options {
    Synchronisation synchronisation = Synchronisation::kSynchronous;
    double alpha = 0.1;                            // of model averaging; in (0, 1]
    Compression compression = Compression::kNone;  // of f32 gradients, in the synchronous way
    uint64_t seed = 0;                             // of the choice of partners
    // That it may leave the synchronous way: models are then registered as each member's own.
    bool may_switch = false;
    // Leaves the synchronous result where the host's ranks share it: gradients() has it, and the
    // buckets' gradients stay what they were.
    bool share_results = false;
  };
  // A model that was pulled.
  struct Pull {
    PeerId peer;
    uint64_t version = 0;  // the step at whose end it was published
  };

  // Registers the parameters as state under the buckets' names; before the first step.
  static Result<std::unique_ptr<Synchroniser>> make(Session& session, std::vector<Bucket> buckets,
                                                    const Options& options);
  ~Synchroniser();
  Synchroniser(const Synchroniser&) = delete;
  Synchroniser& operator=(const Synchroniser&) = delete;

  // Starts what can run while the caller computes. Parameters must not change before commit() has
  // returned.
  Status begin(const Step& step);
  // The gradients of this bucket are complete and do not change before commit() has returned. In
  // any order; commit() hands in what was not announced.
  Status ready(size_t bucket);
  // Commits the step. True: gradients are what the optimizer is to apply, and the parameters have
  // been drawn together. False: nothing is to be applied, because there are Step::more() samples,
  // whose gradients are to be added to those that are there, or because this member is out of the
  // job. An error ends the training.
  Result<bool> commit();
  // The optimizer has run. With pair averaging the model is published.
  Status applied();

  // Changes the way, from the next step on; all members make the same call between the same two
  // steps. Where members' models differ and must not from there on, the first step averages them.
  Status switch_to(Synchronisation synchronisation);

  Synchronisation synchronisation() const;
  size_t buckets() const { return parts_.size(); }
  const Bucket& bucket(size_t bucket) const { return parts_[bucket].bucket; }
  // What to apply, after commit() has said so.
  std::span<const std::byte> gradients(size_t bucket) const;
  // Of the last step, if a model was pulled in it.
  const std::optional<Pull>& last_pull() const { return last_pull_; }
  // Steps in which no model was pulled although there were other members: the chosen one had not
  // published any yet, or was lost.
  uint64_t pulls_missed() const { return pulls_missed_; }
  // How long the last commit() has waited for others and for the network.
  Duration exposed() const { return exposed_; }
  // What this member has handed in during the last step.
  uint64_t reduced_bytes() const { return reduced_bytes_; }

 private:
  // What all members know alike, newcomers included: it is registered state.
  struct Agreed {
    uint64_t since = 1;  // the step with which the present way began
    uint64_t seed = 0;
    double alpha = 0.1;
    Synchronisation synchronisation = Synchronisation::kSynchronous;
    Compression compression = Compression::kNone;
    uint8_t equalise = 0;  // the next step makes the models equal
    uint8_t crowded = 0;   // too many members for int8
    uint8_t reserved[4] = {};
  };
  struct Part {
    Bucket bucket;
    std::string gradients_name;
    std::string model_name;
    bool handed_in = false;
    const std::byte* shared = nullptr;                // the result, if it is left where it is
    std::unique_ptr<CompressedGradients> compressed;  // f32 of a job that compresses

    size_t bytes() const { return bucket.count * size_of(bucket.dtype); }
    bool is_model() const { return bucket.gradients != nullptr; }
  };

  Synchroniser(Session& session, std::vector<Part> parts, const Options& options);
  Status register_state();
  bool averages() const;
  bool synchronous() const { return agreed_.synchronisation == Synchronisation::kSynchronous; }
  bool averaged(const Part& part) const { return part.is_model() || agreed_.equalise != 0; }
  Status hand_in_models();
  Status hand_in_gradients(Part& part);
  Status hand_in_rest();
  void start_pull();
  Status draw_together();
  void take_pull();
  Status take_gradients();
  Status take_synchronous(Part& part);
  Compression compression_now() const;

  Session& session_;
  std::vector<Part> parts_;
  std::vector<const Part*> model_;  // those with gradients, in the order of a published model
  const bool may_differ_;           // models are registered as each member's own
  const bool share_results_;
  Agreed agreed_;
  Step step_;          // the open one
  bool open_ = false;  // between begin() and the commit
  uint64_t last_step_ = 0;
  uint64_t own_samples_ = 0;  // in the open step
  size_t handed_in_ = 0;      // buckets whose gradients are
  uint8_t done_ = 1;          // handed in when nothing else says that the computation is complete
  std::optional<Rank> partner_;
  PeerId partner_id_;
  Request pull_;
  std::optional<Pull> last_pull_;
  uint64_t pulls_missed_ = 0;
  Duration exposed_{};
  uint64_t reduced_bytes_ = 0;
};

}  // namespace pliant
