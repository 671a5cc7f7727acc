# The description of the API and the page for browsers, inside the server's layer.
set(openapi ${CMAKE_BINARY_DIR}/openapi.json)
set(openapi_bytes ${CMAKE_SOURCE_DIR}/src/server/openapi/openapi.S)
configure_file(${CMAKE_SOURCE_DIR}/src/server/openapi/openapi.json ${openapi} @ONLY)
target_sources(riptide_server PRIVATE ${openapi_bytes})
set_source_files_properties(${openapi_bytes} PROPERTIES COMPILE_DEFINITIONS OPENAPI_FILE="${openapi}"
  COMPILE_OPTIONS "-Wno-pedantic" OBJECT_DEPENDS ${openapi})

set(page ${CMAKE_SOURCE_DIR}/src/server/page/page.html)
set(page_gzip ${CMAKE_BINARY_DIR}/page.html.gz)
set(page_bytes ${CMAKE_SOURCE_DIR}/src/server/page/page.S)
file(ARCHIVE_CREATE OUTPUT ${page_gzip} PATHS ${page} FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page})
target_sources(riptide_server PRIVATE ${page_bytes})
set_source_files_properties(${page_bytes} PROPERTIES COMPILE_DEFINITIONS "PAGE_FILE=\"${page}\";PAGE_GZIP=\"${page_gzip}\""
  COMPILE_OPTIONS "-Wno-pedantic" OBJECT_DEPENDS "${page};${page_gzip}")
