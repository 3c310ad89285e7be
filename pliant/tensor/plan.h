// The plan of a change of layout: which box of which tensor goes from which old rank to which new
// one. A pure function of two layouts; the same on every machine, whatever order things come in.
//
// A box that the new rank's process has already stays where it is and costs nothing. Any other
// comes from a process of the same host if one has it, otherwise from another host; where several
// could give it, from the one that has the least to send. So each member receives exactly what it
// lacks, which no plan can undercut: that sum is the lower bound.
//
// Values; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pliant/base/ids.h"
#include "pliant/base/result.h"
#include "pliant/tensor/box.h"
#include "pliant/tensor/collection.h"
#include "pliant/tensor/layout.h"

namespace pliant::tensor {

// Bytes per second, for the prediction.
struct LinkSpeeds {
  double host = 10e9;       // copies inside one host, all together
  double network = 12.5e9;  // of one host, in each direction
};

struct PlanOptions {
  enum class Members : uint8_t {
    kGiven,   // below
    kChosen,  // so that much stays in place; the hosts of the new layout may be any machines
  };
  Members choice = Members::kGiven;
  // For each new rank, the old rank of the same process, or kNewcomer. Empty: each rank keeps its
  // number.
  std::vector<Rank> members = {};
  std::vector<Rank> lost = {};  // old ranks whose memory is gone
  // Of each tensor of the new layout, whether it is planned; empty: all are. The others come from
  // elsewhere.
  std::vector<bool> tensors = {};
  enum class Wire : uint8_t {
    kOnceARank,  // each rank fetches what its host lacks
    kOnceAHost,  // one rank of a host does, and the others take it from there: Plan::relays
  };
  Wire wire = Wire::kOnceARank;
  LinkSpeeds speeds = {};
};

inline constexpr Rank kNewcomer = -1;

struct Move {
  uint32_t tensor = 0;  // in Plan::collection
  uint32_t box = 0;     // in Plan::boxes
  Rank from = 0;        // an old rank
  Rank to = 0;          // a new rank; the same process if Plan::is_in_place()

  bool operator==(const Move&) const = default;
};

// Elements of a tensor that no surviving member has.
struct Gone {
  uint32_t tensor = 0;
  Box box = {};

  bool operator==(const Gone&) const = default;
};

struct HostLink {
  uint32_t from = 0;
  uint32_t to = 0;  // the same: between processes of one host
  uint64_t bytes = 0;

  bool operator==(const HostLink&) const = default;
};

// What one host has to do.
struct HostLoad {
  uint32_t ranks_before = 0;
  uint32_t ranks_after = 0;
  uint64_t bytes_in_place = 0;
  uint64_t bytes_inside = 0;  // between its processes
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;

  bool operator==(const HostLoad&) const = default;
};

struct PlanTotals {
  uint64_t bytes_total = 0;     // what the new ranks hold, replicas included, padding not
  uint64_t bytes_in_place = 0;  // of it, what they held already
  uint64_t bytes_moved = 0;     // the rest, as far as anybody has it
  uint64_t bytes_inside = 0;    // of what is moved: inside hosts
  uint64_t bytes_network = 0;   // and between hosts
  uint64_t bytes_lower_bound = 0;
  uint64_t bytes_received_max = 0;  // by one new rank
  uint64_t bytes_sent_max = 0;      // by one old rank
  double predicted_s = 0;

  bool operator==(const PlanTotals&) const = default;
};

struct Plan {
  std::shared_ptr<const Collection> collection = {};  // the new layout's
  uint32_t from_ranks = 0;
  uint32_t to_ranks = 0;
  std::vector<Rank> members = {};       // of each new rank: its old rank, or kNewcomer
  std::vector<uint32_t> to_hosts = {};  // of each new rank: its host
  std::vector<Box> boxes = {};
  std::vector<Move> moves = {};         // by new rank; those in place among them
  std::vector<size_t> first_move = {};  // of each new rank, and behind the last one
  // What to do after all moves: here `from` is a new rank too, and has received the box. By new
  // rank.
  std::vector<Move> relays = {};
  std::vector<Gone> gone = {};       // if there are any, the plan does not fill the new layout
  std::vector<HostLink> links = {};  // by from and to
  std::vector<HostLoad> hosts = {};
  PlanTotals totals = {};

  bool is_complete() const { return gone.empty(); }
  bool is_in_place(const Move& move) const {
    return members[static_cast<size_t>(move.to)] == move.from;
  }
  std::span<const Move> moves_to(Rank rank) const {
    const auto index = static_cast<size_t>(rank);
    return std::span(moves).subspan(first_move[index], first_move[index + 1] - first_move[index]);
  }
  uint64_t bytes_of(const Move& move) const {
    return volume(boxes[move.box]) * size_of((*collection)[move.tensor].dtype);
  }
};

// Fails if the layouts are of different tensors, or if the options do not fit them.
Result<Plan> make_plan(const Layout& from, const Layout& to, const PlanOptions& options = {});

}  // namespace pliant::tensor
