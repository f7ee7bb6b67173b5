extern int ext(int, void*); extern int ext2(int);
int leaf(int a){return a*3;}
int two(int a){char b[100]; int r=ext(a,b); return r+leaf(a);}
int vla(int n){char b[n]; int r=ext(n,b)+ext2(n); return r+b[3];}
double fl(double x,double y,double z){ for(int i=0;i<9;i++) x+=ext2(i)*y+z; return x;}
int big(int n){char b[100000]; for(int i=0;i<n;i++) ext(i,b); return b[n];}
int early(int n){ if(n<3) return n; int r=0; for(int i=0;i<n;i++) r+=ext2(i)^ext2(i+1)^ext2(r); if(r>7) return ext2(3); return r*ext2(9);}
