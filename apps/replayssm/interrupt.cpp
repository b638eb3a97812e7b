// SIGINT and SIGPIPE of the program.
#include "interrupt.hpp"

#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigaction is POSIX, not C++
#include <unistd.h>

namespace replayssm::app {
namespace {

volatile sig_atomic_t interrupt_seen = 0;

extern "C" void remember_interrupt(int /*signal*/) { interrupt_seen = 1; }

}  // namespace

void prepare_process() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) != -1) continue;
    // Opened the wrong way round on purpose: writing to a closed output must stay an error.
    const int flags = descriptor == 0 ? O_WRONLY : O_RDONLY;
    if (open("/dev/null", flags) != descriptor) _exit(1);
  }
  struct sigaction action {};
  action.sa_handler = remember_interrupt;
  sigemptyset(&action.sa_mask);
  // The handler removes itself; system calls that were waiting go on.
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigemptyset(&ignore.sa_mask);
  sigaction(SIGPIPE, &ignore, nullptr);
}

bool interrupted() { return interrupt_seen != 0; }

}  // namespace replayssm::app
