#include "cli/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pliant::cli {
namespace {

struct OptionWords {
  std::vector<std::string> names;  // "-n", "--workers"
  std::string description;
  bool takes_value = false;
};

struct CommandWords {
  std::string name;
  std::string description;
  std::vector<OptionWords> options;
  std::vector<std::string> values;  // of a positional with fixed choices
  bool takes_program = false;       // what follows is a command of its own
};

std::vector<OptionWords> options_of(const CLI::App& app) {
  std::vector<OptionWords> list;
  for (const CLI::Option* option : app.get_options()) {
    OptionWords words;
    for (const std::string& name : option->get_snames()) words.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) words.names.push_back("--" + name);
    if (words.names.empty()) continue;
    words.description = option->get_description();
    words.takes_value = option->get_items_expected_max() > 0;
    list.push_back(std::move(words));
  }
  return list;
}

// The options of commands inside a command are offered together; several of them have the same.
void add_missing(std::vector<OptionWords>& all, std::vector<OptionWords> more) {
  for (OptionWords& option : more) {
    const bool known = std::any_of(all.begin(), all.end(), [&](const OptionWords& other) {
      return other.names == option.names;
    });
    if (!known) all.push_back(std::move(option));
  }
}

std::vector<CommandWords> commands_of(const CLI::App& app) {
  std::vector<CommandWords> list;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_group().empty()) continue;  // hidden
    CommandWords words{command->get_name(),
                       command->get_description(),
                       options_of(*command),
                       {},
                       command->get_prefix_command()};
    for (const CLI::App* inner : command->get_subcommands([](const CLI::App*) { return true; })) {
      words.values.push_back(inner->get_name());
      add_missing(words.options, options_of(*inner));
    }
    list.push_back(std::move(words));
  }
  return list;
}

// Inside single quotes of any of the shells.
std::string quoted(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
    } else {
      result += c == '\n' ? ' ' : c;
    }
  }
  return "'" + result + "'";
}

std::string all_names(const CommandWords& command) {
  std::string names;
  for (const OptionWords& option : command.options)
    for (const std::string& name : option.names) names += name + " ";
  for (const std::string& value : command.values) names += value + " ";
  return names;
}

std::string bash_script(const std::vector<CommandWords>& commands) {
  std::string names;
  std::string cases;
  for (const CommandWords& command : commands) {
    names += command.name + " ";
    cases += fmt::format("    {}) words={} ;;\n", command.name, quoted(all_names(command)));
  }
  return fmt::format(R"script(# bash completion for pliant: eval "$(pliant completion bash)"
_pliant() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words=
  local i
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ ${{COMP_WORDS[i]}} == -- ]]; then
      COMPREPLY=($(compgen -f -c -- "$current"))
      return
    fi
  done
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W {} -- "$current"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{}  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _pliant pliant
)script",
                     quoted(names + "--help --version"), cases);
}

std::string zsh_script(const std::vector<CommandWords>& commands) {
  const auto escaped = [](const std::string& text) {
    std::string result;
    for (const char c : text) {
      if (c == '[' || c == ']' || c == ':' || c == '\\') result += '\\';
      result += c;
    }
    return result;
  };
  std::string names;
  std::string cases;
  for (const CommandWords& command : commands) {
    names += fmt::format("    {}\n", quoted(command.name + ":" + escaped(command.description)));
    std::string specs;
    for (const OptionWords& option : command.options) {
      for (const std::string& name : option.names)
        specs += fmt::format(" \\\n        {}",
                             quoted(fmt::format("{}[{}]{}", name, escaped(option.description),
                                                option.takes_value ? ":value:_files" : "")));
    }
    if (!command.values.empty())
      specs += fmt::format(" \\\n        {}",
                           quoted(fmt::format("1:what:({})", fmt::join(command.values, " "))));
    if (command.takes_program) specs += " \\\n        '*:::program:_normal'";
    cases += fmt::format("      {})\n        _arguments{}\n        ;;\n", command.name, specs);
  }
  return fmt::format(R"script(#compdef pliant
# zsh completion for pliant: source <(pliant completion zsh)
_pliant() {{
  local -a commands
  commands=(
{}  )
  if ((CURRENT == 2)); then
    _describe 'command' commands
  else
    local command=$words[2]
    shift words
    ((CURRENT--))
    case $command in
{}    esac
  fi
}}
compdef _pliant pliant
)script",
                     names, cases);
}

std::string fish_script(const std::vector<CommandWords>& commands) {
  std::string lines = "# fish completion for pliant: pliant completion fish | source\n";
  for (const CommandWords& command : commands) {
    lines += fmt::format("complete -c pliant -n __fish_use_subcommand -f -a {} -d {}\n",
                         command.name, quoted(command.description));
    const std::string seen = quoted("__fish_seen_subcommand_from " + command.name);
    for (const OptionWords& option : command.options) {
      std::string names;
      for (const std::string& name : option.names)
        names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      lines += fmt::format("complete -c pliant -n {}{}{} -d {}\n", seen, names,
                           option.takes_value ? " -r" : "", quoted(option.description));
    }
    for (const std::string& value : command.values)
      lines += fmt::format("complete -c pliant -n {} -f -a {}\n", seen, value);
  }
  return lines;
}

}  // namespace

std::string completion_script(const CLI::App& app, Shell shell) {
  const std::vector<CommandWords> commands = commands_of(app);
  switch (shell) {
    case Shell::kBash: return bash_script(commands);
    case Shell::kZsh: return zsh_script(commands);
    case Shell::kFish: return fish_script(commands);
  }
  return "";
}

void add_completion(CLI::App& app, int& exit_code) {
  CLI::App* const completion =
      app.add_subcommand("completion", "Print a script that teaches a shell to complete pliant");
  completion->require_subcommand(1);
  completion->footer(R"script(Examples:
  eval "$(pliant completion bash)"                              in ~/.bashrc
  source <(pliant completion zsh)                               in ~/.zshrc
  pliant completion fish | source                               in config.fish)script");
  const std::pair<const char*, Shell> shells[] = {
      {"bash", Shell::kBash}, {"zsh", Shell::kZsh}, {"fish", Shell::kFish}};
  for (const auto& [name, shell] : shells) {
    completion->add_subcommand(name, fmt::format("The script for {}", name))
        ->callback([&app, &exit_code, shell = shell] {
          const std::string script = completion_script(app, shell);
          exit_code = std::fwrite(script.data(), 1, script.size(), stdout) == script.size() ? 0 : 1;
        });
  }
}

}  // namespace pliant::cli
