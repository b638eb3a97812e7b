# Cross-compiling for 64-bit Arm Linux with Debian's g++-aarch64-linux-gnu; programs are run by qemu's
# user mode where it is installed (qemu-user-static).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

find_program(REPLAYSSM_QEMU_AARCH64 NAMES qemu-aarch64-static qemu-aarch64)
if(REPLAYSSM_QEMU_AARCH64)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${REPLAYSSM_QEMU_AARCH64};-L;/usr/aarch64-linux-gnu")
endif()
