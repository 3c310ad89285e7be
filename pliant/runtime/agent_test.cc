#include "pliant/runtime/agent.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace pliant {
namespace {

using namespace std::chrono_literals;

// A directory of its own, gone afterwards.
class Directory final {
 public:
  Directory() {
    std::string name = (std::filesystem::temp_directory_path() / "pliant-agent-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  std::string path() const { return path_; }
  std::string write(const std::string& name, const std::string& text, mode_t mode) const {
    std::ofstream(path_ + "/" + name) << text;
    chmod((path_ + "/" + name).c_str(), mode);
    return path_ + "/" + name;
  }
  std::string read(const std::string& name) const {
    std::ifstream file(path_ + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::string path_;
};

TEST(FindProgram, SearchesAsAShellDoes) {
  const Directory here;
  const std::string tool = here.write("tool", "#!/bin/sh\n", 0755);
  here.write("data", "", 0644);
  EXPECT_EQ(find_program("tool", "/", "/nowhere:" + here.path()).path, tool);
  EXPECT_EQ(find_program(tool, "/", "").path, tool);
  EXPECT_EQ(find_program("./tool", here.path(), "").path, here.path() + "/./tool");
  EXPECT_EQ(find_program("none", here.path(), here.path()).exit_code, 127);
  EXPECT_EQ(find_program("/nowhere/none", "", "").exit_code, 127);
  EXPECT_EQ(find_program(here.path(), "", "").exit_code, 126);
  EXPECT_EQ(find_program("", "", "/bin").exit_code, 127);
  EXPECT_NE(find_program("tool", here.path(), "/nowhere").problem.find("./tool"),
            std::string::npos);
  if (access((here.path() + "/data").c_str(), X_OK) != 0) {
    EXPECT_EQ(find_program("data", "/", here.path()).exit_code, 126);
    EXPECT_EQ(find_program("./data", here.path(), "").exit_code, 126);
  }
}

AgentSpec spec_of(const Directory& directory, const std::string& script, uint32_t workers) {
  AgentSpec spec;
  spec.coordinator = "127.0.0.1:1";
  spec.token = "secret";
  spec.host_name = "b";
  spec.address = "127.0.0.1";
  spec.host = 1;
  spec.group_rank = 1;
  spec.first_rank = 4;
  spec.worker_count = workers;
  spec.world_size = 4 + workers;
  spec.command = {"/bin/sh", "-c", script};
  spec.directory = directory.path();
  spec.environment = {{"EXTRA", "x y"}};
  spec.output = {.prefix = true, .quiet = true, .log_directory = "logs"};
  return spec;
}

TEST(WorkerEnvironment, HasPliantsAndTorchsVariables) {
  const Directory directory;
  const auto variables =
      worker_environment(spec_of(directory, "", 2), StartWorkers{"10.0.0.9", 29500}, {1, 1, 5});
  const std::map<std::string, std::string> expected = {{"EXTRA", "x y"},
                                                       {"PLIANT_COORDINATOR", "127.0.0.1:1"},
                                                       {"PLIANT_TOKEN", "secret"},
                                                       {"PLIANT_PEER", "1.1#1"},
                                                       {"PLIANT_HOST", "b"},
                                                       {"PLIANT_ADDRESS", "127.0.0.1"},
                                                       {"RANK", "5"},
                                                       {"WORLD_SIZE", "6"},
                                                       {"LOCAL_RANK", "1"},
                                                       {"LOCAL_WORLD_SIZE", "2"},
                                                       {"GROUP_RANK", "1"},
                                                       {"MASTER_ADDR", "10.0.0.9"},
                                                       {"MASTER_PORT", "29500"}};
  EXPECT_EQ(variables, expected);
}

// Runs the agent's loop until `done`; the bound only keeps a broken test from hanging.
template <typename Done>
void turn_until(Loop& loop, Done done) {
  const Instant deadline = now() + 60s;
  while (!done() && now() < deadline) {
    loop.unlock();
    loop.wait(deadline - now());
    loop.lock();
    loop.turn();
  }
  EXPECT_TRUE(done());
}

class AgentTest : public ::testing::Test {
 protected:
  AgentTest() : guard_(loop_), nowhere_(open("/dev/null", O_WRONLY | O_CLOEXEC)) {
    auto group = ProcessGroup::make();
    EXPECT_TRUE(group.ok());
    group_ = std::move(*group);
  }
  std::unique_ptr<Agent> make(const AgentSpec& spec) {
    return std::make_unique<Agent>(
        Agent::Surroundings{loop_, *group_, output_, output_}, spec,
        Agent::Reports{[this](const WorkerExited& exited) { ends_[exited.peer.slot] = exited; }});
  }

  Directory directory_;
  Loop loop_;
  std::lock_guard<Loop> guard_;
  Fd nowhere_;
  Output output_{loop_, nowhere_.get()};
  std::unique_ptr<ProcessGroup> group_;
  std::map<uint16_t, WorkerExited> ends_;
};

TEST_F(AgentTest, ReportsEveryEndAndWritesLogs) {
  const auto agent = make(
      spec_of(directory_,
              "echo rank $RANK; echo $EXTRA >&2; [ $LOCAL_RANK = 0 ] || kill -9 $$; exit 3", 2));
  const AgentReady ready = agent->prepare();
  ASSERT_EQ(ready.problem, "");
  EXPECT_EQ(ready.host, 1u);
  EXPECT_NE(ready.free_port, 0);
  agent->start({"127.0.0.1", ready.free_port});
  turn_until(loop_, [&] { return ends_.size() == 2; });
  EXPECT_EQ(agent->running(), 0u);
  EXPECT_EQ(ends_[0].exit_code, 3);
  EXPECT_EQ(ends_[1].exit_code, 137);
  EXPECT_EQ(ends_[1].signal, SIGKILL);
  EXPECT_EQ(ends_[1].peer, (PeerId{1, 1, 1}));
  EXPECT_EQ(directory_.read("logs/rank-4.log"), "rank 4\nx y\n");
  EXPECT_EQ(directory_.read("logs/rank-5.log"), "rank 5\nx y\n");
}

TEST_F(AgentTest, SignalsReachWorkersAndTheirChildren) {
  // A shell and its child, both waiting: the signal must end the child, or wait would go on.
  const auto agent = make(
      spec_of(directory_,
              "trap 'wait; exit 7' USR1; sh -c 'echo ready > ready; exec sleep 1000' & wait", 1));
  ASSERT_EQ(agent->prepare().problem, "");
  agent->start({"127.0.0.1", 1});
  while (directory_.read("ready") != "ready\n") loop_.turn();
  group_->signal(SIGUSR1);
  turn_until(loop_, [&] { return ends_.size() == 1; });
  EXPECT_EQ(ends_[0].exit_code, 7);
}

TEST_F(AgentTest, ProblemsAreFoundBeforeTheStart) {
  AgentSpec spec = spec_of(directory_, "", 1);
  spec.command = {"/nowhere/none"};
  AgentReady ready = make(spec)->prepare();
  EXPECT_EQ(ready.exit_code, 127);
  EXPECT_NE(ready.problem.find("host b"), std::string::npos);
  EXPECT_NE(ready.problem.find("/nowhere/none"), std::string::npos);

  spec = spec_of(directory_, "", 1);
  spec.directory = "/nowhere";
  EXPECT_EQ(make(spec)->prepare().exit_code, 1);

  spec = spec_of(directory_, "", 1);
  spec.address = "192.0.2.1";  // reserved for documentation, so not ours
  EXPECT_NE(make(spec)->prepare().problem.find("192.0.2.1"), std::string::npos);

  spec = spec_of(directory_, "", 1);
  spec.output.log_directory = "/dev/null/logs";
  EXPECT_EQ(make(spec)->prepare().exit_code, 1);
}

TEST_F(AgentTest, WorkersOfAnElasticJobStartOneByOneAndHaveALifeLock) {
  AgentSpec spec = spec_of(directory_,
                           "readlink /proc/$$/fd/$PLIANT_LIFE_FD; echo $PLIANT_PEER $RANK; "
                           "[ $LOCAL_RANK = 0 ] || { echo ready > ready; exec sleep 1000; }",
                           2);
  spec.elastic = true;
  const auto agent = make(spec);
  ASSERT_EQ(agent->prepare().problem, "");
  agent->start({"127.0.0.1", 1});
  EXPECT_EQ(agent->running(), 0u);
  agent->start_worker({0, 3, 17});
  turn_until(loop_, [&] { return ends_.size() == 1; });
  EXPECT_EQ(ends_[0].peer, (PeerId{1, 0, 3}));
  EXPECT_EQ(ends_[0].exit_code, 0);
  agent->start_worker({0, 3, 17});  // the same order again, from a coordinator that was away
  EXPECT_EQ(agent->running(), 0u);
  EXPECT_EQ(directory_.read("logs/rank-17.log"), "/memfd:pliant-life (deleted)\n1.0#3 17\n");

  agent->start_worker({1, 1, 18});
  while (directory_.read("ready").empty()) loop_.turn();
  const AgentReady report = agent->report();
  EXPECT_EQ(report.problem, "");
  EXPECT_EQ(report.running, (std::vector<PeerId>{{1, 1, 1}}));
  EXPECT_EQ(report.ended, (std::vector<WorkerExited>{ends_[0]}));
  agent->start_worker({1, 2, 19});  // its slot is not free
  EXPECT_EQ(ends_.at(1).peer, (PeerId{1, 1, 2}));
  EXPECT_NE(ends_.at(1).problem.find("not free"), std::string::npos);
  agent->signal_worker({{1, 1, 2}, SIGKILL});  // there is no such worker
  agent->signal_worker({{1, 1, 1}, SIGTERM});
  ends_.clear();
  turn_until(loop_, [&] { return ends_.size() == 1; });
  EXPECT_EQ(ends_[1].peer, (PeerId{1, 1, 1}));
  EXPECT_EQ(ends_[1].signal, SIGTERM);
}

TEST_F(AgentTest, NoticeIsToldOnceAndRepeatedInReports) {
  std::vector<Notice> notices;
  Agent agent(Agent::Surroundings{loop_, *group_, output_, output_},
              spec_of(directory_, "exit 0", 1),
              Agent::Reports{[](const WorkerExited&) {}, [](const WorkerDied&) {},
                             [&](const Notice& notice) { notices.push_back(notice); }});
  ASSERT_EQ(agent.prepare().notice, "");
  agent.give_notice("soon gone");
  agent.give_notice("again");
  EXPECT_EQ(notices, (std::vector<Notice>{{1, Notice::kWholeHost, "soon gone"}}));
  EXPECT_EQ(agent.report().notice, "soon gone");
}

TEST_F(AgentTest, GroupTakesAllWithIt) {
  const auto agent =
      make(spec_of(directory_, "sleep 1000 & echo $! > pid; echo $$ > ready; wait", 1));
  ASSERT_EQ(agent->prepare().problem, "");
  agent->start({"127.0.0.1", 1});
  while (directory_.read("ready").empty()) loop_.turn();
  const pid_t grandchild = std::stoi(directory_.read("pid"));
  EXPECT_EQ(getpgid(grandchild), group_->id());
  adopt_orphans();  // so that we can wait for the grandchild
  group_.reset();
  turn_until(loop_, [&] { return ends_.size() == 1; });
  EXPECT_EQ(ends_[0].signal, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(grandchild, &status, 0), grandchild);
  EXPECT_TRUE(WIFSIGNALED(status));
}

}  // namespace
}  // namespace pliant
