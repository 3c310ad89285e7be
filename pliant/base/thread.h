// What a thread asks of the kernel. Any thread, for itself.
#pragma once

namespace pliant {

// For threads that sleep, and must act at once when woken, however busy the cores are: asks for
// short turns, for which the kernel (Linux 6.12 on) interrupts those who asked for none. Processes
// that the thread starts do not inherit it. Where the kernel does not know it, nothing happens.
void run_promptly();

}  // namespace pliant
