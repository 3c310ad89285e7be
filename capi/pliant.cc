#include "capi/pliant.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "capi/handles.h"

namespace pliant::capi {
namespace {

// The numbers are the same on both sides.
static_assert(PLIANT_PEER_LOST == static_cast<int>(Code::kPeerLost));
static_assert(PLIANT_STALE_EPOCH == static_cast<int>(Code::kStaleEpoch));
static_assert(PLIANT_TIMEOUT == static_cast<int>(Code::kTimeout));
static_assert(PLIANT_CANCELLED == static_cast<int>(Code::kCancelled));
static_assert(PLIANT_OVERLOADED == static_cast<int>(Code::kOverloaded));
static_assert(PLIANT_INVALID == static_cast<int>(Code::kInvalid));
static_assert(PLIANT_I8 == static_cast<int>(DType::kI8));
static_assert(PLIANT_I16 == static_cast<int>(DType::kI16));
static_assert(PLIANT_I32 == static_cast<int>(DType::kI32));
static_assert(PLIANT_I64 == static_cast<int>(DType::kI64));
static_assert(PLIANT_U8 == static_cast<int>(DType::kU8));
static_assert(PLIANT_U16 == static_cast<int>(DType::kU16));
static_assert(PLIANT_U32 == static_cast<int>(DType::kU32));
static_assert(PLIANT_U64 == static_cast<int>(DType::kU64));
static_assert(PLIANT_BOOL == static_cast<int>(DType::kBool));
static_assert(PLIANT_F16 == static_cast<int>(DType::kF16));
static_assert(PLIANT_BF16 == static_cast<int>(DType::kBF16));
static_assert(PLIANT_F32 == static_cast<int>(DType::kF32));
static_assert(PLIANT_F64 == static_cast<int>(DType::kF64));
static_assert(PLIANT_F8_E4M3 == static_cast<int>(DType::kF8E4M3));
static_assert(PLIANT_F8_E5M2 == static_cast<int>(DType::kF8E5M2) && PLIANT_F8_E5M2 + 1 == kDTypes);
static_assert(PLIANT_SUM == static_cast<int>(Op::kSum));
static_assert(PLIANT_MEAN == static_cast<int>(Op::kMean));
static_assert(PLIANT_MIN == static_cast<int>(Op::kMin));
static_assert(PLIANT_MAX == static_cast<int>(Op::kMax));
static_assert(PLIANT_PROD == static_cast<int>(Op::kProd) && PLIANT_PROD + 1 == kOps);
static_assert(PLIANT_ALL_REDUCE == static_cast<int>(Collective::kAllReduce));
static_assert(PLIANT_REDUCE == static_cast<int>(Collective::kReduce));
static_assert(PLIANT_BROADCAST == static_cast<int>(Collective::kBroadcast));
static_assert(PLIANT_ALL_GATHER == static_cast<int>(Collective::kAllGather));
static_assert(PLIANT_GATHER == static_cast<int>(Collective::kGather));
static_assert(PLIANT_SCATTER == static_cast<int>(Collective::kScatter));
static_assert(PLIANT_REDUCE_SCATTER == static_cast<int>(Collective::kReduceScatter));
static_assert(PLIANT_ALL_TO_ALL == static_cast<int>(Collective::kAllToAll));
static_assert(PLIANT_BARRIER == static_cast<int>(Collective::kBarrier));
static_assert(PLIANT_SEND == static_cast<int>(Collective::kSend));
static_assert(PLIANT_RECV == static_cast<int>(Collective::kReceive) &&
              PLIANT_RECV + 1 == kCollectives);
static_assert(PLIANT_NEWEST == Session::kNewest);

// The last error of a thread. The text may fail to grow just when memory is what lacks.
struct LastError {
  std::string text;
  const char* shown = "";
  Rank peer = -1;
};
thread_local LastError last_error;

bool is_below(int number, int end) { return number >= 0 && number < end; }

template <typename Handle>
pliant_status destroy(const char* function, Handle* handle) noexcept {
  return guarded(function, kNoView, {}, [&] {
    delete handle;
    return Status{};
  });
}

// Reads one property of a session.
template <typename T, typename Get>
pliant_status read(const char* function, const pliant_session* session, T* to, Get get) noexcept {
  return guarded(function, session, {{to, "result"}}, [&] {
    *to = get(*session->session);
    return Status{};
  });
}

// As far as it fits, with a closing zero.
Status copy_text(const std::string& text, char* buffer, size_t buffer_bytes, size_t* needed) {
  if (buffer == nullptr && buffer_bytes > 0) return invalid("the buffer is null, but has a size");
  if (needed != nullptr) *needed = text.size() + 1;
  if (buffer_bytes == 0) return {};
  const size_t copied = std::min(text.size(), buffer_bytes - 1);
  std::memcpy(buffer, text.data(), copied);
  buffer[copied] = '\0';
  return {};
}

Status check_options_size(size_t size) {
  // Up to the last field that version 0.1.0 had.
  constexpr size_t kFirstVersionBytes = offsetof(pliant_options, store_window) + sizeof(int);
  constexpr size_t kOptionsBytesMax = 4096;
  if (size >= kFirstVersionBytes && size <= kOptionsBytesMax) return {};
  return invalid(fmt::format(
      "options of {} bytes; begin with pliant_options_init(&options, sizeof options)", size));
}

// The options of the caller's version of the header, whichever that is.
Result<pliant_options> known_options(const pliant_options& given) {
  PLIANT_TRY(check_options_size(given.size));
  pliant_options known = {};
  const auto* bytes = reinterpret_cast<const unsigned char*>(&given);
  std::memcpy(&known, bytes, std::min(given.size, sizeof known));
  for (size_t i = sizeof known; i < given.size; ++i)
    if (bytes[i] != 0)
      return invalid("the options set a field that this version of the library does not know");
  return known;
}

// What the caller has set goes over the environment, in the environment's own words, so that one
// place reads and checks both.
Result<SessionOptions> merged_options(const pliant_options& given) {
  auto known = known_options(given);
  if (!known) return known.error();
  std::map<std::string, std::string> variables = environment_variables();
  const auto text = [&](const char* name, const char* value) {
    if (value != nullptr) variables[name] = value;
  };
  const auto number = [&](const char* name, auto value) {
    if (value != 0) variables[name] = std::to_string(value);
  };
  text("PLIANT_COORDINATOR", known->coordinator);
  text("PLIANT_JOB", known->job);
  text("PLIANT_TOKEN", known->token);
  text("PLIANT_PEER", known->peer);
  text("PLIANT_HOST", known->host);
  text("PLIANT_ADDRESS", known->address);
  text("PLIANT_TRANSPORT", known->transport);
  text("PLIANT_STRATEGY", known->strategy);
  number("PLIANT_TIMEOUT", known->timeout_seconds);
  number("PLIANT_JOIN_TIMEOUT", known->join_timeout_seconds);
  number("PLIANT_HEAP", known->heap_bytes_max);
  number("PLIANT_CONNECTIONS", known->connections);
  number("PLIANT_STORE_WINDOW", known->store_window);
  return options_from(variables);
}

Status open(const SessionOptions& options, pliant_session** session) {
  auto opened = Session::open(options);
  if (!opened) return opened.error();
  auto handle = std::make_unique<pliant_session>();
  handle->session = std::move(*opened);
  handle->view = std::make_shared<const View>(handle->session->view());
  *session = handle.release();
  return {};
}

// Keeps the text that `write` makes, or at least the code's.
template <typename Write>
pliant_status keep(Code code, Rank peer, Write write) noexcept {
  LastError& last = last_error;
  last.peer = peer;
  last.shown = to_string(code);
  try {
    last.text = write();
    last.shown = last.text.c_str();
  } catch (const std::exception&) {
  }
  return static_cast<pliant_status>(code);
}

}  // namespace

pliant_status fail(const Error& error, const View* view) noexcept {
  const bool known = view != nullptr && error.peer != PeerId{};
  return keep(error.code, known ? view->rank_of(error.peer) : -1, [&] { return error.message; });
}

pliant_status fail(const char* function, const char* problem, Code code) noexcept {
  return keep(code, -1, [&] { return fmt::format("{}: {}", function, problem); });
}

pliant_status fail_null(const char* function, const char* argument) noexcept {
  return keep(Code::kInvalid, -1,
              [&] { return fmt::format("{}: the {} is null", function, argument); });
}

}  // namespace pliant::capi

using namespace pliant;        // NOLINT: this file is the C side of that namespace
using namespace pliant::capi;  // NOLINT

// ---- Words and errors -------------------------------------------------------------------------

const char* pliant_version(void) { return PLIANT_VERSION; }

const char* pliant_status_name(pliant_status status) {
  if (status == PLIANT_OK) return "ok";
  if (status == PLIANT_MORE) return "more";
  const bool known = status >= PLIANT_PEER_LOST && status <= PLIANT_INVALID;
  return known ? to_string(static_cast<Code>(status)) : "unknown";
}

const char* pliant_dtype_name(pliant_dtype dtype) {
  return is_below(dtype, kDTypes) ? to_string(static_cast<DType>(dtype)) : "unknown";
}

const char* pliant_op_name(pliant_op op) {
  return is_below(op, kOps) ? to_string(static_cast<Op>(op)) : "unknown";
}

const char* pliant_collective_name(pliant_collective collective) {
  return is_below(collective, kCollectives) ? to_string(static_cast<Collective>(collective))
                                            : "unknown";
}

size_t pliant_dtype_size(pliant_dtype dtype) {
  return is_below(dtype, kDTypes) ? size_of(static_cast<DType>(dtype)) : 0;
}

const char* pliant_last_error(void) { return last_error.shown; }
int pliant_last_error_peer(void) { return last_error.peer; }

// ---- Session ----------------------------------------------------------------------------------

pliant_status pliant_session_open(pliant_session** session) {
  return guarded(__func__, kNoView, {{session, "result"}}, [&]() -> Status {
    auto options = options_from_environment();
    if (!options) return options.error();
    return open(*options, session);
  });
}

pliant_status pliant_options_init(pliant_options* options, size_t size) {
  return guarded(__func__, kNoView, {{options, "options"}}, [&]() -> Status {
    PLIANT_TRY(check_options_size(size));
    std::memset(options, 0, size);
    options->size = size;
    return {};
  });
}

pliant_status pliant_session_open_with(const pliant_options* options, pliant_session** session) {
  return guarded(__func__, kNoView, {{options, "options"}, {session, "result"}}, [&]() -> Status {
    auto merged = merged_options(*options);
    if (!merged) return merged.error();
    return open(*merged, session);
  });
}

pliant_status pliant_session_close(pliant_session* session) { return destroy(__func__, session); }

pliant_status pliant_rank(const pliant_session* session, int* rank) {
  return read(__func__, session, rank, [](const Session& s) { return s.rank(); });
}

pliant_status pliant_size(const pliant_session* session, int* size) {
  return read(__func__, session, size, [](const Session& s) { return s.size(); });
}

pliant_status pliant_local_rank(const pliant_session* session, int* rank) {
  return read(__func__, session, rank, [](const Session& s) { return s.local_rank(); });
}

pliant_status pliant_local_size(const pliant_session* session, int* size) {
  return read(__func__, session, size, [](const Session& s) { return s.local_size(); });
}

pliant_status pliant_host_count(const pliant_session* session, int* hosts) {
  return read(__func__, session, hosts, [](const Session& s) { return s.host_count(); });
}

pliant_status pliant_epoch(const pliant_session* session, uint32_t* epoch) {
  return read(__func__, session, epoch, [](const Session& s) { return number(s.view().epoch); });
}

pliant_status pliant_allocate(pliant_session* session, size_t bytes, void** memory) {
  return guarded(__func__, session, {{memory, "result"}}, [&]() -> Status {
    // More than any machine has; also keeps the arithmetic below us from wrapping around.
    if (bytes > SIZE_MAX / 2)
      return Error{Code::kOverloaded, "no machine has that much memory to allocate", {}, {}};
    auto allocated = session->session->allocate(bytes);
    if (!allocated) return allocated.error();
    const std::lock_guard guard(session->mutex);
    session->allocations.emplace(allocated->data(), bytes);
    *memory = allocated->data();
    return {};
  });
}

pliant_status pliant_release(pliant_session* session, void* memory) {
  return guarded(__func__, session, {}, [&]() -> Status {
    if (memory == nullptr) return {};
    const std::lock_guard guard(session->mutex);
    const auto at = session->allocations.find(memory);
    if (at == session->allocations.end())
      return invalid("pliant_release: pliant_allocate() did not give this memory");
    session->session->release({static_cast<std::byte*>(memory), at->second});
    session->allocations.erase(at);
    return {};
  });
}

pliant_status pliant_share(pliant_session* session, void* memory, size_t bytes) {
  return guarded(__func__, session, {{memory, "memory"}}, [&] {
    return session->session->share({static_cast<std::byte*>(memory), bytes});
  });
}

pliant_status pliant_unshare(pliant_session* session, void* memory) {
  return guarded(__func__, session, {{memory, "memory"}},
                 [&] { return session->session->unshare(static_cast<std::byte*>(memory)); });
}

pliant_status pliant_is_registered(pliant_session* session, const void* memory, size_t bytes,
                                   int* registered) {
  return guarded(__func__, session, {{memory, "memory"}, {registered, "result"}}, [&] {
    *registered = session->session->is_registered(memory, bytes) ? 1 : 0;
    return Status{};
  });
}

// ---- Groups -----------------------------------------------------------------------------------

pliant_status pliant_group_create(pliant_session* session, const int* ranks, int count,
                                  pliant_group** group) {
  return guarded(__func__, session, {{ranks, "array of ranks"}, {group, "result"}},
                 [&]() -> Status {
                   if (count <= 0) return invalid(fmt::format("a group of {} members", count));
                   auto made = session->session->group({ranks, static_cast<size_t>(count)});
                   if (!made) return made.error();
                   *group = new pliant_group{session, std::move(*made)};
                   return {};
                 });
}

pliant_status pliant_group_destroy(pliant_group* group) { return destroy(__func__, group); }

pliant_status pliant_group_rank(const pliant_group* group, int* rank) {
  return guarded(__func__, kNoView, {{group, "group"}, {rank, "result"}}, [&] {
    *rank = group->group.self;
    return Status{};
  });
}

pliant_status pliant_group_size(const pliant_group* group, int* size) {
  return guarded(__func__, kNoView, {{group, "group"}, {size, "result"}}, [&] {
    *size = group->group.size();
    return Status{};
  });
}

// ---- Strategy ---------------------------------------------------------------------------------

pliant_status pliant_set_strategy(pliant_session* session, const char* strategy) {
  return guarded(__func__, session, {{strategy, "strategy"}},
                 [&] { return session->session->set_strategy(strategy); });
}

pliant_status pliant_strategy(pliant_session* session, char* buffer, size_t buffer_bytes,
                              size_t* needed) {
  return guarded(__func__, session, {}, [&] {
    return copy_text(session->session->strategy(), buffer, buffer_bytes, needed);
  });
}

pliant_status pliant_measure_links(pliant_session* session) {
  return guarded(__func__, session, {}, [&] { return session->session->measure_links(); });
}

pliant_status pliant_explain(pliant_session* session, pliant_collective collective, size_t bytes,
                             char* buffer, size_t buffer_bytes, size_t* needed) {
  return guarded(__func__, session, {}, [&]() -> Status {
    if (!is_below(collective, kCollectives))
      return invalid(fmt::format("pliant_explain: {} is no collective", collective));
    const auto known = static_cast<Collective>(collective);
    return copy_text(session->session->explain(known, bytes), buffer, buffer_bytes, needed);
  });
}

// ---- Store ------------------------------------------------------------------------------------

pliant_status pliant_save(pliant_session* session, const char* name, uint64_t version,
                          const void* data, size_t bytes) {
  return guarded(__func__, session, {{name, "name"}}, [&]() -> Status {
    if (data == nullptr && bytes > 0) return invalid("pliant_save: the data is null");
    const std::span value(static_cast<const std::byte*>(data), bytes);
    return session->session->save(name, version, value);
  });
}

pliant_status pliant_request(pliant_session* session, int peer, const char* name, uint64_t version,
                             pliant_value** value) {
  return guarded(__func__, session, {{name, "name"}, {value, "result"}}, [&]() -> Status {
    auto fetched = session->session->request(peer, name, version);
    if (!fetched) return fetched.error();
    *value = new pliant_value{std::move(*fetched)};
    return {};
  });
}

const void* pliant_value_data(const pliant_value* value) {
  return value == nullptr ? nullptr : value->bytes.data();
}

size_t pliant_value_size(const pliant_value* value) {
  return value == nullptr ? 0 : value->bytes.size();
}

pliant_status pliant_value_destroy(pliant_value* value) { return destroy(__func__, value); }
