/* The bytes of openapi.json with the program's version in it, in read-only data. OPENAPI_FILE is set by CMake. */
    .section .rodata
    .global riptide_openapi_begin
    .global riptide_openapi_end
riptide_openapi_begin:
    .incbin OPENAPI_FILE
riptide_openapi_end:
    .byte 0
    .section .note.GNU-stack,"",@progbits
