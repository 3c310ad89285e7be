# libtorch, as the interface target pliant_torch, if there is one. Debian's libtorch-dev is found by
# itself; that of a Python package needs its folder:
#
#   cmake --preset release \
#     -DCMAKE_PREFIX_PATH="$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)')"
#
# The package's own TorchConfig.cmake is not used: it looks for the CUDA toolkit and for whatever
# else the package was built with, and sets variables of the whole project. Headers and the
# libraries for the CPU are all that train/ needs.

set(PLIANT_TRAIN AUTO CACHE STRING "Build train/ on libtorch: ON, OFF, or AUTO, if there is one")
set_property(CACHE PLIANT_TRAIN PROPERTY STRINGS AUTO ON OFF)

function(pliant_find_torch result)
  set(${result} OFF PARENT_SCOPE)
  if(NOT PLIANT_TRAIN)
    return()
  endif()
  if(PLIANT_SANITIZE)
    # libtorch is not instrumented: its allocations, locks and thread pools would be reported as
    # faults of ours, or hide some.
    if(NOT PLIANT_TRAIN STREQUAL AUTO)
      message(FATAL_ERROR "PLIANT_TRAIN needs a build without sanitizers: libtorch has none")
    endif()
    return()
  endif()

  # A Python package has share/cmake in the folder that holds include/ and lib/.
  set(hints)
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH)
    list(APPEND hints "${prefix}" "${prefix}/../..")
  endforeach()
  find_path(PLIANT_TORCH_API torch/torch.h HINTS ${hints}
            PATH_SUFFIXES include/torch/csrc/api/include torch/csrc/api/include)
  find_library(PLIANT_TORCH_CPU torch_cpu HINTS ${hints} PATH_SUFFIXES lib)
  find_library(PLIANT_TORCH_C10 c10 HINTS ${hints} PATH_SUFFIXES lib)
  mark_as_advanced(PLIANT_TORCH_API PLIANT_TORCH_CPU PLIANT_TORCH_C10)
  if(NOT PLIANT_TORCH_API OR NOT PLIANT_TORCH_CPU OR NOT PLIANT_TORCH_C10)
    if(NOT PLIANT_TRAIN STREQUAL AUTO)
      message(FATAL_ERROR "PLIANT_TRAIN needs libtorch: install libtorch-dev, or add its folder "
                          "to CMAKE_PREFIX_PATH")
    endif()
    message(STATUS "libtorch is missing: train/ is left out")
    return()
  endif()
  message(STATUS "Found libtorch: ${PLIANT_TORCH_CPU}")

  # torch/csrc/api/include stands below the folder of the other headers.
  get_filename_component(headers "${PLIANT_TORCH_API}/../../../.." ABSOLUTE)
  get_filename_component(folder "${PLIANT_TORCH_CPU}" DIRECTORY)
  add_library(pliant_torch INTERFACE)
  target_include_directories(pliant_torch SYSTEM INTERFACE "${PLIANT_TORCH_API}" "${headers}")
  # libtorch uses the shared C++ library, and a program must not have a second one: a compiler that
  # would link its own statically gives programs that crash at their end.
  target_link_libraries(pliant_torch INTERFACE "${PLIANT_TORCH_CPU}" "${PLIANT_TORCH_C10}"
                                               -l:libstdc++.so.6)
  # Its own libraries are found by its own paths, at load time.
  target_link_options(pliant_torch INTERFACE "-Wl,--allow-shlib-undefined"
                                             "-Wl,-rpath-link,${folder}")
  set(${result} ON PARENT_SCOPE)
endfunction()
