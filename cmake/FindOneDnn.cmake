# Finds oneDNN for use on the CPU: target OneDnn::dnnl.
#
# oneDNN's own package file is not used: where the library was built with its GPU part it demands
# OpenCL's development files, which nothing here needs.
find_path(OneDnn_INCLUDE_DIR dnnl.hpp)
find_library(OneDnn_LIBRARY dnnl)
mark_as_advanced(OneDnn_INCLUDE_DIR OneDnn_LIBRARY)

set(OneDnn_VERSION "")
foreach(_replayssm_header IN ITEMS "oneapi/dnnl/dnnl_version.h" "dnnl_version.h")
  if(NOT OneDnn_VERSION AND OneDnn_INCLUDE_DIR
     AND EXISTS "${OneDnn_INCLUDE_DIR}/${_replayssm_header}")
    file(STRINGS "${OneDnn_INCLUDE_DIR}/${_replayssm_header}" _replayssm_lines
      REGEX "#define DNNL_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
    set(_replayssm_parts "")
    foreach(_replayssm_line IN LISTS _replayssm_lines)
      string(REGEX REPLACE ".* ([0-9]+).*" "\\1" _replayssm_part "${_replayssm_line}")
      list(APPEND _replayssm_parts ${_replayssm_part})
    endforeach()
    list(JOIN _replayssm_parts "." OneDnn_VERSION)
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDnn
  REQUIRED_VARS OneDnn_LIBRARY OneDnn_INCLUDE_DIR
  VERSION_VAR OneDnn_VERSION
  REASON_FAILURE_MESSAGE "on Debian: apt-get install libdnnl-dev")

if(OneDnn_FOUND AND NOT TARGET OneDnn::dnnl)
  add_library(OneDnn::dnnl UNKNOWN IMPORTED)
  set_target_properties(OneDnn::dnnl PROPERTIES
    IMPORTED_LOCATION "${OneDnn_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${OneDnn_INCLUDE_DIR}")
endif()
