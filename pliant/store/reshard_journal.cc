#include "pliant/store/reshard_journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "pliant/base/bytes.h"

namespace pliant::store {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "pliant.reshard/1";
constexpr uint64_t kJournalBytesMax = uint64_t{1} << 30;

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string hex(uint64_t number) { return fmt::format("{:016x}", number); }

std::optional<std::string> text_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string()) return std::nullopt;
  return found->get<std::string>();
}

std::optional<uint64_t> hex_in(const Json& json, const char* key) {
  const auto text = text_in(json, key);
  if (!text || text->empty()) return std::nullopt;
  uint64_t number = 0;
  const auto [stop, error] = std::from_chars(text->data(), text->data() + text->size(), number, 16);
  if (error != std::errc{} || stop != text->data() + text->size()) return std::nullopt;
  return number;
}

std::optional<uint64_t> number_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_unsigned()) return std::nullopt;
  return found->get<uint64_t>();
}

bool read_request(const Json& json, ReshardRequest& request) {
  const auto source = text_in(json, "source");
  const auto state = hex_in(json, "source_state");
  const auto layout = hex_in(json, "layout");
  const auto max_shard = number_in(json, "max_shard");
  const auto kind = text_in(json, "kind");
  if (text_in(json, "format") != kFormat || !source || !state || !layout || !max_shard || !kind)
    return false;
  request = {*source, *state, *layout, *max_shard, *kind};
  return true;
}

bool read_file(const Json& json, WrittenFile& file) {
  const auto name = text_in(json, "file");
  const auto bytes = number_in(json, "bytes");
  const auto checksum = hex_in(json, "checksum");
  if (!name || name->empty() || name->find('/') != std::string::npos || !bytes || !checksum)
    return false;
  file = {*name, *bytes, *checksum};
  return true;
}

}  // namespace

std::string difference(const ReshardRequest& begun, const ReshardRequest& wanted) {
  if (begun.source != wanted.source) return "of another source, " + begun.source;
  if (begun.source_state != wanted.source_state) return "of the source before it was changed";
  if (begun.layout != wanted.layout) return "to another layout";
  if (begun.shard_bytes_max != wanted.shard_bytes_max)
    return fmt::format("with --max-shard {}", begun.shard_bytes_max);
  if (begun.kind != wanted.kind) return "to files of " + begun.kind;
  return "";
}

std::string encode(const ReshardRequest& request) {
  return line_of({{"format", kFormat},
                  {"source", request.source},
                  {"source_state", hex(request.source_state)},
                  {"layout", hex(request.layout)},
                  {"max_shard", request.shard_bytes_max},
                  {"kind", request.kind}});
}

std::string encode(const WrittenFile& file) {
  return line_of(
      {{"file", file.name}, {"bytes", file.size_bytes}, {"checksum", hex(file.checksum)}});
}

Result<JournalContents> decode_journal(std::string_view text) {
  JournalContents contents;
  size_t line = 0;
  for (size_t begin = 0; begin < text.size(); ++line) {
    const size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) break;
    const Json json = Json::parse(text.substr(begin, end - begin), nullptr, false);
    const bool good =
        json.is_object() && (line == 0 ? read_request(json, contents.request)
                                       : read_file(json, contents.files.emplace_back()));
    if (!good) return invalid(fmt::format("line {} is none of a reshard's journal", line + 1));
    begin = end + 1;
  }
  if (line == 0) return invalid("it has no line");
  return contents;
}

Result<std::unique_ptr<ReshardJournal>> ReshardJournal::open(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd.valid()) return system_error("cannot open " + path);
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK)
      return invalid(
          fmt::format("another reshard is working there (it has {} open); wait for it", path));
    return system_error("cannot lock " + path);
  }
  std::unique_ptr<ReshardJournal> journal(new ReshardJournal(path, std::move(fd)));
  std::array<char, 1 << 14> part{};
  while (true) {
    const ssize_t size = read(journal->fd_.get(), part.data(), part.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return system_error("cannot read " + path);
    if (size == 0) break;
    journal->text_.append(part.data(), static_cast<size_t>(size));
    if (journal->text_.size() > kJournalBytesMax)
      return invalid(fmt::format("{} is larger than any journal", path));
  }
  // What a crash left of a line must not become the beginning of the next one.
  const size_t end = journal->text_.rfind('\n');
  journal->text_.resize(end == std::string::npos ? 0 : end + 1);
  if (ftruncate(journal->fd_.get(), static_cast<off_t>(journal->text_.size())) != 0)
    return system_error("cannot write " + path);
  return journal;
}

Status ReshardJournal::clear() {
  text_.clear();
  if (ftruncate(fd_.get(), 0) != 0) return system_error("cannot write " + path_);
  return {};
}

Status ReshardJournal::append(const std::string& line) {
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = pwrite(fd_.get(), line.data() + done, line.size() - done,
                                   static_cast<off_t>(text_.size() + done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return system_error("cannot write " + path_);
    done += static_cast<size_t>(written);
  }
  if (fsync(fd_.get()) != 0) return system_error("cannot sync " + path_);
  text_ += line;
  return {};
}

}  // namespace pliant::store
