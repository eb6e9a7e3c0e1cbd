from mkbench.cli import main

main()
