#include "pliant/tensor/plan_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "pliant/tensor/json_fields.h"

namespace pliant::tensor {
namespace {

constexpr uint64_t kUnsignedMax = UINT32_MAX;
constexpr uint64_t kBytesMax = UINT64_MAX;

// ---- Writing ------------------------------------------------------------------------------------

// Tables of numbers are written by hand: those of a large plan have millions of rows.
void append_numbers(std::string& text, auto first, auto last) {
  for (auto i = first; i != last; ++i) {
    if (i != first) text += ',';
    const fmt::format_int digits(*i);
    text.append(digits.data(), digits.size());
  }
}

void append_boxes(std::string& text, const std::vector<Box>& boxes) {
  for (size_t i = 0; i < boxes.size(); ++i) {
    text += i == 0 ? "[" : ",[";
    append_numbers(text, boxes[i].begin.begin(), boxes[i].begin.begin() + boxes[i].dims);
    text += boxes[i].dims == 0 ? "" : ",";
    append_numbers(text, boxes[i].end.begin(), boxes[i].end.begin() + boxes[i].dims);
    text += "]";
  }
}

void append_moves(std::string& text, const std::vector<Move>& moves) {
  for (size_t i = 0; i < moves.size(); ++i) {
    const int64_t row[] = {moves[i].tensor, moves[i].box, moves[i].from, moves[i].to};
    text += i == 0 ? "" : ",";
    append_numbers(text, std::begin(row), std::end(row));
  }
}

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json totals_json(const PlanTotals& totals) {
  return {{"bytes_total", totals.bytes_total},
          {"bytes_in_place", totals.bytes_in_place},
          {"bytes_moved", totals.bytes_moved},
          {"bytes_inside", totals.bytes_inside},
          {"bytes_network", totals.bytes_network},
          {"bytes_lower_bound", totals.bytes_lower_bound},
          {"bytes_received_max", totals.bytes_received_max},
          {"bytes_sent_max", totals.bytes_sent_max},
          {"predicted_s", totals.predicted_s}};
}

// ---- Reading ------------------------------------------------------------------------------------

Status read_totals(const JsonField& field, PlanTotals& totals) {
  PLIANT_TRY(field.check_keys({"bytes_total", "bytes_in_place", "bytes_moved", "bytes_inside",
                               "bytes_network", "bytes_lower_bound", "bytes_received_max",
                               "bytes_sent_max", "predicted_s"}));
  const std::pair<const char*, uint64_t*> numbers[] = {
      {"bytes_total", &totals.bytes_total},
      {"bytes_in_place", &totals.bytes_in_place},
      {"bytes_moved", &totals.bytes_moved},
      {"bytes_inside", &totals.bytes_inside},
      {"bytes_network", &totals.bytes_network},
      {"bytes_lower_bound", &totals.bytes_lower_bound},
      {"bytes_received_max", &totals.bytes_received_max},
      {"bytes_sent_max", &totals.bytes_sent_max}};
  for (const auto& [name, number] : numbers) {
    const auto value = field.get(name);
    if (!value) return value.error();
    PLIANT_TRY(assign(*number, value->number(0, kBytesMax)));
  }
  const auto predicted = field.get("predicted_s");
  if (!predicted) return predicted.error();
  return assign(totals.predicted_s, predicted->real());
}

Status read_tensors(const JsonField& field, Plan& plan) {
  std::vector<TensorInfo> tensors;
  PLIANT_TRY(field.each([&](const JsonField& item) -> Status {
    if (!item.value().is_array() || item.value().size() != 3)
      return item.fault("expected a list of name, type and shape");
    TensorInfo& tensor = tensors.emplace_back();
    const auto part = [&](size_t i) {
      return JsonField(item.value()[i], fmt::format("{}[{}]", item.path(), i));
    };
    PLIANT_TRY(assign(tensor.name, part(0).text()));
    const auto word = part(1).text();
    if (!word) return word.error();
    const auto dtype = parse_dtype(*word);
    if (!dtype) return part(1).fault(dtype.error().message);
    tensor.dtype = *dtype;
    return assign(tensor.shape, part(2).numbers(Collection::kBytesMax));
  }));
  auto made = Collection::make(std::move(tensors));
  if (!made) return field.fault(made.error().message);
  plan.collection = std::make_shared<Collection>(std::move(*made));
  return {};
}

Result<Box> read_box(const JsonField& field) {
  const auto numbers = field.numbers(Collection::kBytesMax);
  if (!numbers) return numbers.error();
  const size_t dims = numbers->size() / 2;
  if (numbers->size() % 2 != 0 || dims > kDimsMax)
    return field.fault("expected where the box begins in each dimension, then where it ends");
  Box box;
  box.dims = static_cast<uint32_t>(dims);
  std::copy_n(numbers->begin(), dims, box.begin.begin());
  std::copy_n(numbers->begin() + static_cast<ptrdiff_t>(dims), dims, box.end.begin());
  if (is_empty(box)) return field.fault("the box is empty");
  return box;
}

bool is_in(const Plan& plan, size_t tensor, const Box& box) {
  const TensorInfo& info = (*plan.collection)[tensor];
  return box.dims == info.shape.size() && contains(whole(info.shape), box);
}

// Moves, by new rank, from one of so many ranks.
Result<std::vector<Move>> read_move_list(const JsonField& field, const Plan& plan,
                                         uint32_t from_ranks) {
  const auto numbers = field.numbers(kUnsignedMax);
  if (!numbers) return numbers.error();
  if (numbers->size() % 4 != 0)
    return field.fault("expected four numbers for each move: tensor, box, from, to");
  std::vector<Move> moves;
  Rank last = 0;
  for (size_t i = 0; i < numbers->size(); i += 4) {
    const uint64_t tensor = (*numbers)[i];
    const uint64_t box = (*numbers)[i + 1];
    const uint64_t from = (*numbers)[i + 2];
    const uint64_t to = (*numbers)[i + 3];
    if (tensor >= plan.collection->size() || box >= plan.boxes.size() || from >= from_ranks ||
        to >= plan.to_ranks)
      return field.fault(
          fmt::format("move {} names a tensor, box or rank that is not there", i / 4));
    if (!is_in(plan, tensor, plan.boxes[box]))
      return field.fault(fmt::format("move {}: {} is not inside tensor '{}'", i / 4,
                                     to_string(plan.boxes[box]), (*plan.collection)[tensor].name));
    const Move move{static_cast<uint32_t>(tensor), static_cast<uint32_t>(box),
                    static_cast<Rank>(from), static_cast<Rank>(to)};
    if (move.to < last) return field.fault("the moves are not in the order of their new ranks");
    last = move.to;
    moves.push_back(move);
  }
  return moves;
}

Status read_moves(const JsonField& field, Plan& plan) {
  PLIANT_TRY(assign(plan.moves, read_move_list(field, plan, plan.from_ranks)));
  plan.first_move.assign(plan.to_ranks + 1, 0);
  for (const Move& move : plan.moves) ++plan.first_move[static_cast<size_t>(move.to) + 1];
  for (size_t rank = 0; rank < plan.to_ranks; ++rank)
    plan.first_move[rank + 1] += plan.first_move[rank];
  return {};
}

Status read_members(const JsonField& field, Plan& plan) {
  PLIANT_TRY(field.each([&](const JsonField& item) -> Status {
    if (item.value() == kNewcomer) {
      plan.members.push_back(kNewcomer);
      return {};
    }
    if (plan.from_ranks == 0) return item.fault("there are no old ranks");
    return assign(plan.members.emplace_back(), item.number(0, plan.from_ranks - 1));
  }));
  if (plan.members.size() != plan.to_ranks) return field.fault("expected one for each new rank");
  return {};
}

Status read_rank_hosts(const JsonField& field, Plan& plan) {
  const auto hosts = field.numbers(2 * Mesh::kRanksMax);
  if (!hosts) return hosts.error();
  if (hosts->size() != plan.to_ranks) return field.fault("expected one for each new rank");
  plan.to_hosts.assign(hosts->begin(), hosts->end());
  return {};
}

Status read_gone(const JsonField& field, Plan& plan) {
  return field.each([&](const JsonField& item) -> Status {
    PLIANT_TRY(item.check_keys({"tensor", "box"}));
    const auto tensor = item.get("tensor");
    const auto box = item.get("box");
    if (!tensor) return tensor.error();
    if (!box) return box.error();
    const auto number = tensor->number(0, kUnsignedMax);
    if (!number) return number.error();
    const auto read = read_box(*box);
    if (!read) return read.error();
    if (*number >= plan.collection->size() || !is_in(plan, *number, *read))
      return item.fault("names a tensor that is not there, or a box beyond it");
    plan.gone.push_back({static_cast<uint32_t>(*number), *read});
    return {};
  });
}

// A row of numbers with a fixed length.
Result<std::vector<uint64_t>> read_row(const JsonField& field, size_t length) {
  auto row = field.numbers(kBytesMax);
  if (!row) return row.error();
  if (row->size() != length) return field.fault(fmt::format("expected {} numbers", length));
  return row;
}

Status read_links(const JsonField& field, Plan& plan) {
  return field.each([&](const JsonField& item) -> Status {
    const auto row = read_row(item, 3);
    if (!row) return row.error();
    if ((*row)[0] > 2 * Mesh::kRanksMax || (*row)[1] > 2 * Mesh::kRanksMax)
      return item.fault("names a host that cannot be");
    plan.links.push_back(
        {static_cast<uint32_t>((*row)[0]), static_cast<uint32_t>((*row)[1]), (*row)[2]});
    return {};
  });
}

Status read_hosts(const JsonField& field, Plan& plan) {
  return field.each([&](const JsonField& item) -> Status {
    const auto row = read_row(item, 6);
    if (!row) return row.error();
    if ((*row)[0] > Mesh::kRanksMax || (*row)[1] > Mesh::kRanksMax)
      return item.fault("has more ranks than there can be");
    plan.hosts.push_back({static_cast<uint32_t>((*row)[0]), static_cast<uint32_t>((*row)[1]),
                          (*row)[2], (*row)[3], (*row)[4], (*row)[5]});
    return {};
  });
}

}  // namespace

std::string to_json(const Plan& plan) {
  std::string text = fmt::format("{{\n\"format\": \"{}\",\n\"from_ranks\": {},\n\"to_ranks\": {},",
                                 kPlanFormat, plan.from_ranks, plan.to_ranks);
  text += "\n\"totals\": " + text_of(totals_json(plan.totals)) + ",\n\"members\": [";
  append_numbers(text, plan.members.begin(), plan.members.end());
  text += "],\n\"to_hosts\": [";
  append_numbers(text, plan.to_hosts.begin(), plan.to_hosts.end());
  text += "],\n\"tensors\": [";
  for (size_t i = 0; i < plan.collection->size(); ++i) {
    const TensorInfo& tensor = (*plan.collection)[i];
    text += i == 0 ? "" : ",";
    text += text_of(Json::array({tensor.name, to_string(tensor.dtype), tensor.shape}));
  }
  text += "],\n\"boxes\": [";
  append_boxes(text, plan.boxes);
  text += "],\n\"moves\": [";
  append_moves(text, plan.moves);
  text += "],\n\"relays\": [";
  append_moves(text, plan.relays);
  text += "],\n\"gone\": [";
  for (size_t i = 0; i < plan.gone.size(); ++i) {
    text += fmt::format("{}{{\"tensor\":{},\"box\":", i == 0 ? "" : ",", plan.gone[i].tensor);
    append_boxes(text, {plan.gone[i].box});
    text += "}";
  }
  text += "],\n\"links\": [";
  for (size_t i = 0; i < plan.links.size(); ++i)
    text += fmt::format("{}[{},{},{}]", i == 0 ? "" : ",", plan.links[i].from, plan.links[i].to,
                        plan.links[i].bytes);
  text += "],\n\"hosts\": [";
  for (size_t i = 0; i < plan.hosts.size(); ++i) {
    const HostLoad& host = plan.hosts[i];
    text +=
        fmt::format("{}[{},{},{},{},{},{}]", i == 0 ? "" : ",", host.ranks_before, host.ranks_after,
                    host.bytes_in_place, host.bytes_inside, host.bytes_in, host.bytes_out);
  }
  return text + "]\n}\n";
}

Result<Plan> parse_plan(std::string_view text) {
  const auto json = parse_json(text, "the plan");
  if (!json) return json.error();
  const JsonField root(*json, "");
  PLIANT_TRY(root.check_keys({"format", "from_ranks", "to_ranks", "totals", "members", "to_hosts",
                              "tensors", "boxes", "moves", "relays", "gone", "links", "hosts"}));
  Plan plan;
  // In this order, because later ones are checked against earlier ones.
  using Read = Status (*)(const JsonField&, Plan&);
  const std::pair<const char*, Read> fields[] = {
      {"format",
       [](const JsonField& field, Plan&) -> Status {
         if (field.value() == kPlanFormat) return {};
         return field.fault(fmt::format("expected \"{}\"", kPlanFormat));
       }},
      {"from_ranks",
       [](const JsonField& field, Plan& to) {
         return assign(to.from_ranks, field.number(1, Mesh::kRanksMax));
       }},
      {"to_ranks", [](const JsonField& field,
                      Plan& to) { return assign(to.to_ranks, field.number(1, Mesh::kRanksMax)); }},
      {"totals", [](const JsonField& field, Plan& to) { return read_totals(field, to.totals); }},
      {"members", read_members},
      {"to_hosts", read_rank_hosts},
      {"tensors", read_tensors},
      {"boxes",
       [](const JsonField& field, Plan& to) {
         return field.each([&](const JsonField& item) {
           return assign(to.boxes.emplace_back(), read_box(item));
         });
       }},
      {"moves", read_moves},
      {"relays",
       [](const JsonField& field, Plan& to) {
         return assign(to.relays, read_move_list(field, to, to.to_ranks));
       }},
      {"gone", read_gone},
      {"links", read_links},
      {"hosts", read_hosts},
  };
  for (const auto& [name, read] : fields) {
    const auto field = root.get(name);
    if (!field) return field.error();
    PLIANT_TRY(read(*field, plan));
  }
  return plan;
}

// ---- Comparing ----------------------------------------------------------------------------------

namespace {

struct NamedMove {
  std::string_view tensor;
  Box box;
  Rank from = 0;
  Rank to = 0;
  bool is_relay = false;
  uint64_t bytes = 0;

  auto operator<=>(const NamedMove&) const = default;
};

std::vector<NamedMove> named_moves(const Plan& plan) {
  std::vector<NamedMove> list;
  list.reserve(plan.moves.size() + plan.relays.size());
  for (const auto* moves : {&plan.moves, &plan.relays})
    for (const Move& move : *moves)
      list.push_back({(*plan.collection)[move.tensor].name, plan.boxes[move.box], move.from,
                      move.to, moves == &plan.relays, plan.bytes_of(move)});
  std::ranges::sort(list);
  return list;
}

void add(PlanDiff::Side& side, const NamedMove& move) {
  ++side.moves;
  side.bytes += move.bytes;
  if (side.lines.size() < kDiffLinesMax)
    side.lines.push_back(fmt::format("'{}' {} from {}rank {} to rank {}", move.tensor,
                                     to_string(move.box), move.is_relay ? "new " : "", move.from,
                                     move.to));
}

}  // namespace

PlanDiff diff(const Plan& first, const Plan& second) {
  const std::vector<NamedMove> left = named_moves(first);
  const std::vector<NamedMove> right = named_moves(second);
  PlanDiff result;
  auto a = left.begin();
  auto b = right.begin();
  while (a != left.end() || b != right.end()) {
    if (b == right.end() || (a != left.end() && *a < *b)) {
      add(result.only_first, *a++);
    } else if (a == left.end() || *b < *a) {
      add(result.only_second, *b++);
    } else {
      ++a;
      ++b;
    }
  }
  return result;
}

}  // namespace pliant::tensor
