# The description of the API, inside the server's layer.
set(openapi ${CMAKE_BINARY_DIR}/openapi.json)
set(openapi_bytes ${CMAKE_SOURCE_DIR}/src/server/openapi/openapi.S)
configure_file(${CMAKE_SOURCE_DIR}/src/server/openapi/openapi.json ${openapi} @ONLY)
target_sources(riptide_server PRIVATE ${openapi_bytes})
set_source_files_properties(${openapi_bytes} PROPERTIES COMPILE_DEFINITIONS OPENAPI_FILE="${openapi}"
  COMPILE_OPTIONS "-Wno-pedantic" OBJECT_DEPENDS ${openapi})
