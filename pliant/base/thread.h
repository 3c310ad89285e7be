// What a thread asks of the kernel. Any thread.
#pragma once

#include <sys/types.h>

namespace pliant {

// For threads that sleep, and must act at once when woken, however busy the cores are: asks for
// short turns, for which the kernel (Linux 6.12 on) interrupts those who asked for none. Processes
// that the thread starts do not inherit it. Where the kernel does not know it, nothing happens.
void run_promptly();

// The kernel tears down the memory of a killed process in that process's own time: gigabytes are
// tenths of a second, in which it competes with those who live. Asks that this one do so when
// nobody else wants the core. Processes that are not ending, or not ours, are left alone.
void end_in_idle_time(pid_t process);

// Reaps a child of ours that has ended. Its last thread may still be at work, in idle time, and
// then the kernel makes whoever reaps it wait without giving the core away: a second, if the cores
// are busy. Here it waits in idle time too, on a thread of its own.
void reap_in_idle_time(pid_t child);

}  // namespace pliant
