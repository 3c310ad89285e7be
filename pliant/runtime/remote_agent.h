// `pliant agent`: an agent on another host than the launcher's. It reads an AgentSpec from its
// standard input, connects back to the coordinator for orders, and ends with its launcher: when the
// input or the connection closes, its workers are killed. One call a process, from the main thread.
#pragma once

namespace pliant {

// The exit code: 0 unless the agent itself failed; that of the job is the launcher's.
int serve_agent();

}  // namespace pliant
