"""`jaxtribute verify`: is the distributed step the step of one device, and if not, where does it part from it?"""
