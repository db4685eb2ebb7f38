# One target per folder. A folder's headers are reached through a directory that holds nothing but a link to it, so
# `#include "runtime/..."` compiles only in targets that link runtime: the link order is the include order.
#
#   engine <- ops <- autodiff <- models <- runtime <- cli
function(glim_folder name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS;PRIVATE_LINKS" ${ARGN})
  add_library(glim_${name} STATIC ${ARG_SOURCES})
  set(include_dir ${PROJECT_BINARY_DIR}/include/${name})
  file(MAKE_DIRECTORY ${include_dir})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${name} ${include_dir}/${name} SYMBOLIC)
  target_include_directories(glim_${name} PUBLIC ${include_dir})
  target_link_libraries(glim_${name} PUBLIC ${ARG_LINKS} PRIVATE ${ARG_PRIVATE_LINKS})
endfunction()
