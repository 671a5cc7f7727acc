# One static library per layer (a folder of src/). A layer links only what it may include, so an upward call does not link.
#
# Most of compiling is reading headers, so the sources of a folder are compiled RIPTIDE_UNITY at a time (0: each alone).
# That is why names of a source's own are unique in its folder (tools/check_names.py). Alone remain files for another
# instruction set, and the inner loops, which nothing beside them shall change.
set(RIPTIDE_UNITY 12 CACHE STRING "Sources that are compiled together; 0: each alone")

function(riptide_unity target)
  if(RIPTIDE_UNITY GREATER 0)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${RIPTIDE_UNITY})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)  # takes the group's sources for headers
    endif()
  endif()
endfunction()

# What runs on the GPU is beside the layers: `NAME_cuda` has the *.cu files of a layer, `NAME_no_cuda` has no_cuda.cpp,
# whose functions throw. Which of the two is linked is a property of the program, RIPTIDE_GPU: both kinds share all else.
function(riptide_back_end name)
  file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cu)
  if(NOT kernels)
    return()
  endif()
  file(GLOB_RECURSE no_cuda CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/no_cuda.cpp)
  add_library(riptide_${name}_no_cuda STATIC EXCLUDE_FROM_ALL ${no_cuda})
  set(back_ends riptide_${name}_no_cuda)
  if(RIPTIDE_CUDA)
    add_library(riptide_${name}_cuda STATIC EXCLUDE_FROM_ALL ${kernels})
    list(APPEND back_ends riptide_${name}_cuda)
  endif()
  foreach(target ${back_ends})
    target_link_libraries(${target} PUBLIC riptide_${name})
  endforeach()
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    target_compile_options(riptide_${name}_no_cuda PRIVATE -Wno-unused-private-field)  # of classes of which nothing is there
  endif()
  target_link_libraries(riptide_${name} PUBLIC
    $<IF:$<BOOL:$<TARGET_PROPERTY:RIPTIDE_GPU>>,riptide_${name}_cuda,riptide_${name}_no_cuda>)
endfunction()

function(riptide_layer name)
  cmake_parse_arguments(ARG "" "" "LINKS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/no_cuda\\.cpp$")
  add_library(riptide_${name} STATIC ${sources})
  target_include_directories(riptide_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(riptide_${name} PUBLIC ${ARG_LINKS})
  riptide_unity(riptide_${name})
  riptide_back_end(${name})
  foreach(source ${sources})
    if(source MATCHES "/(dot/|attention_kernels_)[a-z0-9_]*\\.cpp$")
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
    # Files named *avx2.cpp and *avx512.cpp hold code that run-time dispatch reaches only on a CPU that has it.
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
      if(source MATCHES "[/_]avx2\\.cpp$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
      elseif(source MATCHES "[/_]avx512\\.cpp$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
          "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512vnni;-mprefer-vector-width=512")
      endif()
    endif()
  endforeach()
endfunction()

# A program of these layers: on the GPU if there is one where RIPTIDE_CUDA is ON.
function(riptide_program name)
  cmake_parse_arguments(ARG "GPU" "" "SOURCES;LINKS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE ${ARG_LINKS})
  if(ARG_GPU OR RIPTIDE_CUDA STREQUAL "ON")
    set_target_properties(${name} PROPERTIES RIPTIDE_GPU ON)
  endif()
endfunction()
