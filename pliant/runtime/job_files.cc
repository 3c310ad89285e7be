#include "pliant/runtime/job_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "pliant/transport/socket.h"

namespace pliant {
namespace {

constexpr int kVersion = 1;
constexpr size_t kFileBytesMax = size_t{64} << 10;
constexpr const char* kEnding = ".json";
constexpr const char* kFolderStart = "pliant-job-";
constexpr size_t kFolderRandom = 6;  // characters that mkdtemp() chooses
constexpr int kFolderTries = 16;

// When a process started, in ticks since boot: a pid alone may be another process's by now.
std::optional<uint64_t> start_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t name_end = text.rfind(')');  // the name itself may hold anything
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  std::string state;
  fields >> state;
  if (state == "Z" || state == "X") return std::nullopt;
  std::string word;
  constexpr int kFieldsToStart = 19;  // state is field 3, the start is field 22
  for (int i = 0; i < kFieldsToStart; ++i) fields >> word;
  uint64_t start = 0;
  const auto read = std::from_chars(word.data(), word.data() + word.size(), start);
  if (read.ec != std::errc{}) return std::nullopt;
  return start;
}

// Makes the folder and those above it, the last for us alone.
Status make_folder(const std::string& folder) {
  for (size_t slash = folder.find('/', 1); slash != std::string::npos;
       slash = folder.find('/', slash + 1))
    mkdir(folder.substr(0, slash).c_str(), 0755);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return system_error("cannot make the folder " + folder);
  struct stat about {};
  if (lstat(folder.c_str(), &about) != 0) return system_error("cannot look at " + folder);
  // The files hold tokens: nobody else may read them or put others in their place.
  if (!S_ISDIR(about.st_mode) || about.st_uid != geteuid() || (about.st_mode & 0077) != 0)
    return invalid(fmt::format("{} must be a folder of your own with mode 0700", folder));
  return {};
}

struct Stored {
  JobEntry entry;
  uint64_t start = 0;
};

std::string encoded(const Stored& stored) {
  nlohmann::ordered_json object = {
      {"version", kVersion},         {"job", stored.entry.job}, {"endpoint", stored.entry.endpoint},
      {"token", stored.entry.token}, {"pid", stored.entry.pid}, {"start", stored.start}};
  for (const JobStore& store : stored.entry.stores)
    object["stores"].push_back({{"host", store.host},
                                {"number", store.number},
                                {"name", store.name},
                                {"endpoint", store.endpoint},
                                {"job", store.job},
                                {"token", store.token}});
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// What cannot be read is left out: the job can be commanded without its stores.
std::vector<JobStore> decoded_stores(const nlohmann::json& object) {
  std::vector<JobStore> stores;
  const auto list = object.find("stores");
  if (list == object.end() || !list->is_array()) return stores;
  for (const auto& item : *list) {
    const auto text = [&](const char* name) {
      const bool there = item.is_object() && item.contains(name) && item[name].is_string();
      return there ? item[name].get<std::string>() : std::string();
    };
    const bool numbered =
        item.is_object() && item.contains("number") && item["number"].is_number_unsigned();
    if (!numbered || text("host").empty()) continue;
    stores.push_back({text("host"), item["number"].get<uint32_t>(), text("name"), text("endpoint"),
                      text("job"), text("token")});
  }
  return stores;
}

std::optional<Stored> decoded(const std::string& text) {
  const auto object = nlohmann::json::parse(text, nullptr, false);
  if (!object.is_object()) return std::nullopt;
  for (const char* name : {"version", "pid", "start"}) {
    if (!object.contains(name) || !object[name].is_number_unsigned()) return std::nullopt;
  }
  for (const char* name : {"job", "endpoint", "token"}) {
    if (!object.contains(name) || !object[name].is_string()) return std::nullopt;
  }
  if (object["version"] != kVersion) return std::nullopt;
  return Stored{{object["job"], object["endpoint"], object["token"], object["pid"].get<pid_t>(),
                 decoded_stores(object)},
                object["start"].get<uint64_t>()};
}

// Only what is ours alone is believed: a stranger's endpoint would be told our wishes.
std::optional<Stored> read_stored(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat about {};
  if (!file.valid() || fstat(file.get(), &about) != 0) return std::nullopt;
  if (!S_ISREG(about.st_mode) || about.st_uid != geteuid() || (about.st_mode & 0077) != 0 ||
      static_cast<size_t>(about.st_size) > kFileBytesMax)
    return std::nullopt;
  std::string text(static_cast<size_t>(about.st_size), '\0');
  const ssize_t count = pread(file.get(), text.data(), text.size(), 0);
  if (count != std::ssize(text)) return std::nullopt;
  return decoded(text);
}

Status write_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  unlink(temporary.c_str());
  Fd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return system_error("cannot create " + temporary);
  Status status;
  if (::write(file.get(), text.data(), text.size()) != std::ssize(text))
    status = system_error("cannot write " + temporary);
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0)
    status = system_error("cannot rename " + temporary);
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> paths;
  DIR* const open_folder = opendir(folder.c_str());
  if (open_folder == nullptr) return paths;
  while (const dirent* const item = readdir(open_folder)) {
    const std::string name = item->d_name;
    if (name.ends_with(kEnding)) paths.push_back(folder + "/" + name);
  }
  closedir(open_folder);
  return paths;
}

// The open folder if it is ours; never what a link leads to.
Fd open_own_folder(const std::string& path) {
  Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat about {};
  if (!folder.valid() || fstat(folder.get(), &about) != 0 || about.st_uid != geteuid()) return {};
  return folder;
}

bool is_still_at(const Fd& folder, const std::string& path) {
  struct stat opened {};
  struct stat found {};
  return fstat(folder.get(), &opened) == 0 && lstat(path.c_str(), &found) == 0 &&
         opened.st_dev == found.st_dev && opened.st_ino == found.st_ino;
}

void remove_dead_folders(const std::string& base) {
  const std::string start = kFolderStart;
  DIR* const open_base = opendir(base.c_str());
  if (open_base == nullptr) return;
  while (const dirent* const item = readdir(open_base)) {
    const std::string name = item->d_name;
    if (!name.starts_with(start) || name.size() != start.size() + kFolderRandom) continue;
    const std::string path = base + "/" + name;
    const Fd folder = open_own_folder(path);
    if (!folder.valid() || flock(folder.get(), LOCK_EX | LOCK_NB) != 0) continue;
    std::error_code ignored;
    if (is_still_at(folder, path)) std::filesystem::remove_all(path, ignored);
  }
  closedir(open_base);
}

// Somebody may take it for a dead job's until it is locked, and then it is gone.
std::optional<std::pair<std::string, Fd>> make_locked_folder(const std::string& base) {
  for (int i = 0; i < kFolderTries; ++i) {
    std::string path = base + "/" + kFolderStart + std::string(kFolderRandom, 'X');
    if (mkdtemp(path.data()) == nullptr) return std::nullopt;
    Fd folder = open_own_folder(path);
    if (folder.valid() && flock(folder.get(), LOCK_EX | LOCK_NB) == 0 && is_still_at(folder, path))
      return std::pair(std::move(path), std::move(folder));
    rmdir(path.c_str());
  }
  return std::nullopt;
}

std::string names_of(const std::vector<JobEntry>& jobs) {
  std::string text;
  for (const JobEntry& entry : jobs)
    text += fmt::format("{}{} (pid {})", text.empty() ? "" : ", ", entry.job, entry.pid);
  return text;
}

}  // namespace

Result<std::string> job_folder(const std::string& runtime_directory, const std::string& home) {
  if (runtime_directory.starts_with('/')) return runtime_directory + "/pliant";
  if (home.starts_with('/')) return home + "/.cache/pliant/jobs";
  return invalid("neither XDG_RUNTIME_DIR nor HOME names a folder");
}

Result<std::unique_ptr<JobFile>> JobFile::write(const std::string& folder, const JobEntry& entry) {
  PLIANT_TRY(make_folder(folder));
  const auto start = start_of(entry.pid);
  if (!start) return invalid(fmt::format("there is no process with pid {}", entry.pid));
  const std::string path = fmt::format("{}/{}{}", folder, entry.pid, kEnding);
  PLIANT_TRY(write_file(path, encoded({entry, *start})));
  return std::unique_ptr<JobFile>(new JobFile(path));
}

JobFile::~JobFile() { unlink(path_.c_str()); }

std::vector<JobEntry> JobFile::list(const std::string& folder) {
  std::vector<JobEntry> jobs;
  for (const std::string& path : files_in(folder)) {
    const auto stored = read_stored(path);
    if (!stored) continue;
    if (start_of(stored->entry.pid) == stored->start) {
      jobs.push_back(stored->entry);
    } else {
      unlink(path.c_str());
    }
  }
  std::ranges::sort(jobs, {}, &JobEntry::pid);
  return jobs;
}

Result<JobEntry> JobFile::find(const std::string& folder, const std::string& name) {
  const std::vector<JobEntry> jobs = list(folder);
  if (jobs.empty()) return invalid("no job of yours is running on this machine");
  std::vector<JobEntry> fitting;
  for (const JobEntry& entry : jobs) {
    if (name.empty() || entry.job == name || std::to_string(entry.pid) == name)
      fitting.push_back(entry);
  }
  if (fitting.size() == 1) return fitting[0];
  if (fitting.empty())
    return invalid(fmt::format("no job '{}' is running; there is {}", name, names_of(jobs)));
  return invalid(fmt::format("which job? choose by name or pid with --job: {}", names_of(fitting)));
}

Result<std::unique_ptr<JobFolder>> JobFolder::make(const std::vector<std::string>& bases) {
  for (const std::string& base : bases) {
    if (base.empty()) continue;
    remove_dead_folders(base);
    if (auto made = make_locked_folder(base))
      return std::unique_ptr<JobFolder>(
          new JobFolder(std::move(made->first), std::move(made->second)));
  }
  return system_error("cannot make a folder for the coordinator's journal");
}

JobFolder::~JobFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace pliant
