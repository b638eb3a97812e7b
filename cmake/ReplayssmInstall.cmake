# Install rules, the CMake package (components kernels and model) and the pkg-config file of the kernels.
include(CMakePackageConfigHelpers)
set(_replayssm_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/replayssm")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

set(_replayssm_components kernels)
if(REPLAYSSM_BUILD_MODEL)
  list(APPEND _replayssm_components model)
endif()
foreach(_replayssm_component IN LISTS _replayssm_components)
  # One export a component, so that an installed copy without the model still offers the kernels.
  install(TARGETS replayssm_${_replayssm_component}
    EXPORT replayssm_${_replayssm_component}_targets
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
    RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  install(EXPORT replayssm_${_replayssm_component}_targets
    NAMESPACE replayssm::
    FILE replayssm_${_replayssm_component}_targets.cmake
    DESTINATION "${_replayssm_package_dir}")
endforeach()

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/replayssmConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/replayssmConfig.cmake"
  INSTALL_DESTINATION "${_replayssm_package_dir}")
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/replayssmConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/replayssmConfig.cmake"
  "${PROJECT_BINARY_DIR}/replayssmConfigVersion.cmake"
  DESTINATION "${_replayssm_package_dir}")
if(REPLAYSSM_BUILD_MODEL)
  install(FILES
    "${PROJECT_SOURCE_DIR}/cmake/ReplayssmModelDependencies.cmake"
    "${PROJECT_SOURCE_DIR}/cmake/FindOneDnn.cmake"
    DESTINATION "${_replayssm_package_dir}")
endif()

# Relative to the file itself, so that an installed copy may be moved.
file(RELATIVE_PATH _replayssm_pc_to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" _replayssm_pc_to_prefix "${_replayssm_pc_to_prefix}")
# What a static library leaves to the program's link: with CUDA its runtime too, where this build found it.
set(REPLAYSSM_PC_LIBS_PRIVATE "-lstdc++ -lm -pthread")
if(REPLAYSSM_ENABLE_CUDA)
  get_target_property(_replayssm_cudart CUDA::cudart_static IMPORTED_LOCATION)
  get_filename_component(_replayssm_cudart_dir "${_replayssm_cudart}" DIRECTORY)
  string(PREPEND REPLAYSSM_PC_LIBS_PRIVATE "-L${_replayssm_cudart_dir} -lcudart_static -ldl -lrt ")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/replayssm-kernels.pc.in"
  "${PROJECT_BINARY_DIR}/replayssm-kernels.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/replayssm-kernels.pc"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

if(REPLAYSSM_BUILD_APPS AND TARGET replayssm)
  install(TARGETS replayssm RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
