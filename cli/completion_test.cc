#include "cli/completion.h"

#include <gtest/gtest.h>

#include "cli/run.h"
#include "cli/store_files.h"

namespace pliant::cli {
namespace {

TEST(Completion, KnowsEveryOptionOfEveryCommand) {
  CLI::App app("test", "pliant");
  int exit_code = 0;
  add_run(app, exit_code);
  add_completion(app, exit_code);
  bool flag = false;
  app.add_subcommand("later", "It's new")->add_flag("--brand-new", flag, "a [flag]: new");
  for (const Shell shell : {Shell::kBash, Shell::kZsh, Shell::kFish}) {
    const std::string script = completion_script(app, shell);
    const bool fish = shell == Shell::kFish;
    for (const char* word : {"run", "completion", "later", "bash", "zsh", "fish"})
      EXPECT_NE(script.find(word), std::string::npos) << word;
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
      for (const CLI::Option* option : command->get_options()) {
        for (const std::string& name : option->get_lnames())
          EXPECT_NE(script.find((fish ? "-l " : "--") + name), std::string::npos) << name;
      }
    }
  }
}

TEST(Completion, OffersTheOptionsOfInnerCommandsOnce) {
  CLI::App app("test", "pliant");
  int exit_code = 0;
  add_store(app, exit_code);
  const std::string script = completion_script(app, Shell::kFish);
  for (const char* word : {"-l checksums", "-l select", "-a verify", "-a ls"})
    EXPECT_NE(script.find(word), std::string::npos) << word;
  const size_t json = script.find("-l json");
  ASSERT_NE(json, std::string::npos);
  EXPECT_EQ(script.find("-l json", json + 1), std::string::npos);
}

}  // namespace
}  // namespace pliant::cli
