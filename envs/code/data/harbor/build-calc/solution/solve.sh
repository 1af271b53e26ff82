#!/bin/bash
set -e
cd /app
sed -i 's/^calc: main.o$/calc: main.o stack.o/; s/-o calc main.o$/-o calc main.o stack.o/' Makefile
sed -i 's/count > STACK_SIZE/count >= STACK_SIZE/; s/values\[count--\]/values[--count]/' stack.c
sed -i 's/#include <stdio.h>/#include <stdio.h>\n#include <stdlib.h>/; s/long a, b, unused;/long a, b;/' main.c
sed -i 's/!pop(&a) || !pop(&b)/!pop(\&b) || !pop(\&a)/' main.c
sed -i "s|case '/': push|case '/': if (b == 0) return fail(); push|" main.c
make
