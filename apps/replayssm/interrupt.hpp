// SIGINT and SIGPIPE of the program.
#pragma once

namespace replayssm::app {

// The first SIGINT only sets a flag, so that the current step finishes and what there is gets
// printed; the second ends the program at once. SIGPIPE is ignored: a closed output is an error
// value of the write. Also makes sure that descriptors 0, 1 and 2 exist, so that no file that is
// opened later can take the place of a closed standard stream.
void prepare_process();

[[nodiscard]] bool interrupted();

}  // namespace replayssm::app
