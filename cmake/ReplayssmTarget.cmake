# What every target of this project is compiled with, in one place.

# Language level, floating-point rules and warnings of one of our own targets.
# LENIENT leaves out the conversion warnings: tests compare types on purpose.
function(replayssm_target_defaults target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "LENIENT" "" "")
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  # A compiler may fuse a * b + c into one rounding where the target has such an instruction. Then
  # the same source gives other bits with other flags, and neither the rounding mirror nor another
  # backend could match the scalar code bit for bit. Where one rounding is wanted the code says
  # std::fma. For the same reason there is no -ffast-math and no -march anywhere in this build:
  # code for a later instruction set is compiled in its own file and chosen at run time.
  target_compile_options(${target} PRIVATE -ffp-contract=off)

  if(REPLAYSSM_WARNINGS)
    target_compile_options(${target} PRIVATE
      -Wall -Wextra -Wpedantic -Wshadow -Wundef -Wvla -Wnon-virtual-dtor -Woverloaded-virtual
      -Wextra-semi)
    if(NOT arg_LENIENT)
      # Sign changes are left out: an index is signed here and a container's size is not.
      target_compile_options(${target} PRIVATE -Wconversion -Wno-sign-conversion)
    endif()
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # g++ 12 reports these in correct code once the standard library is inlined (more so under
      # the sanitizers): -Wrestrict for std::string concatenation is its bug 105651.
      target_compile_options(${target} PRIVATE
        -Wno-restrict -Wno-error=maybe-uninitialized -Wno-error=array-bounds
        -Wno-error=stringop-overflow -Wno-error=stringop-overread)
    endif()
    if(REPLAYSSM_WERROR)
      target_compile_options(${target} PRIVATE -Werror)
    endif()
  endif()
endfunction()

# Defaults of an installed library: public headers below include/, internal ones below src/.
function(replayssm_library_defaults target export_name)
  replayssm_target_defaults(${target})
  target_include_directories(${target}
    PUBLIC
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE
      "${PROJECT_SOURCE_DIR}/src")
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${export_name}
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endfunction()
