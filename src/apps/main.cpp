#include "apps/commands/commands.h"

int main(int argc, char** argv) { return riptide::apps::riptide_main(argc, argv); }
