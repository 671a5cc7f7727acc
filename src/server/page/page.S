/* The bytes of page.html, and of the same compressed by gzip, in read-only data. PAGE_FILE and PAGE_GZIP are set by CMake. */
    .section .rodata
    .global riptide_page_begin
    .global riptide_page_end
    .global riptide_page_gzip_begin
    .global riptide_page_gzip_end
riptide_page_begin:
    .incbin PAGE_FILE
riptide_page_end:
    .byte 0
riptide_page_gzip_begin:
    .incbin PAGE_GZIP
riptide_page_gzip_end:
    .byte 0
    .section .note.GNU-stack,"",@progbits
